// Places between their forms: the operations of places.py, which says what the bytes are.
#if !defined(GRADWIRE_TARGET)

#include <algorithm>

#include "operation.h"
#include "rice.h"

namespace gradwire::operations {

namespace {

// The count of each segment of 65536 elements and 16 bits for each place. `counts` are to add up to k, but where they
// are a caller's, at most k places are read.
struct Places {
  std::uint16_t* indices;
  std::int32_t* counts;
  Size k, n;
};

struct GivenPlaces {
  const std::uint16_t* indices;
  const std::int32_t* counts;
  Size k, n;
};

void check_places(Size k, Size n) {
  if (k < 0 || k > n) throw std::invalid_argument("k must be from 0 to n");
}

constexpr Size kSegment = 65536;

Size bytes_of(Size bits) { return (bits + 7) / 8; }

// Calls f(place) for every place below n that the counts cover.
template <class F>
void for_each(const GivenPlaces& p, const F& f) {
  Size j = 0;
  for (Size begin = 0; begin < p.n; begin += kSegment) {
    const Size count = std::max<Size>(p.counts[begin / kSegment], 0), stop = std::min(j + count, p.k);
    for (; j < stop; ++j)
      if (begin + p.indices[j] < p.n) f(begin + p.indices[j]);
  }
}

// Writes increasing places one by one.
class PlaceWriter {
 public:
  explicit PlaceWriter(const Places& p) : p_(p) {
    std::fill_n(p.counts, (p.n + kSegment - 1) / kSegment, 0);
    std::fill_n(p.indices, p.k, std::uint16_t(0));
  }

  bool full() const { return count_ == p_.k; }

  void put(Size place) {
    p_.indices[count_++] = std::uint16_t(place);
    ++p_.counts[place / kSegment];
  }

 private:
  Places p_;
  Size count_ = 0;
};

struct RiceBytes {
  int shift;
  Size low, high;
};

RiceBytes rice_bytes(Size n, Size k) {
  const int shift = rice_shift(n, k);
  return {shift, bytes_of(k * shift), bytes_of(k + ((n - k) >> shift))};
}

void rice_encode(Maybe<const std::uint16_t> indices, const std::int32_t* counts, std::uint8_t* stream, Size k, Size n) {
  check_places(k, n);
  count_call();
  const RiceBytes bytes = rice_bytes(n, k);
  std::fill_n(stream, bytes.low + bytes.high, std::uint8_t(0));
  RiceWriter writer(bytes.shift, stream, stream + bytes.low);
  Size last = -1;
  for_each({indices.data, counts, k, n}, [&](Size place) {
    if (place > last) writer.put(last = place);  // only increasing places fit for certain
  });
  writer.finish();
}
GRADWIRE_OPERATION(rice_encode)

void rice_decode(const std::uint8_t* stream, Maybe<std::uint16_t> indices, std::int32_t* counts, Size k, Size n) {
  check_places(k, n);
  count_call();
  const RiceBytes bytes = rice_bytes(n, k);
  RiceReader reader(bytes.shift, {stream, bytes.low}, {stream + bytes.low, bytes.high}, n);
  PlaceWriter writer({indices.data, counts, k, n});
  for (Size place; !writer.full() && (place = reader.next()) >= 0;) writer.put(place);
}
GRADWIRE_OPERATION(rice_decode)

void bitmap_encode(Maybe<const std::uint16_t> indices, const std::int32_t* counts, std::uint8_t* bitmap, Size k,
                   Size n) {
  check_places(k, n);
  count_call();
  std::fill_n(bitmap, bytes_of(n), std::uint8_t(0));
  for_each({indices.data, counts, k, n}, [&](Size place) { bitmap[place / 8] |= std::uint8_t(1u << place % 8); });
}
GRADWIRE_OPERATION(bitmap_encode)

void bitmap_decode(const std::uint8_t* bitmap, Maybe<std::uint16_t> indices, std::int32_t* counts, Size k, Size n) {
  check_places(k, n);
  count_call();
  Ones ones({bitmap, bytes_of(n)});
  PlaceWriter writer({indices.data, counts, k, n});
  for (Size place; !writer.full() && (place = ones.next()) >= 0 && place < n;) writer.put(place);
}
GRADWIRE_OPERATION(bitmap_decode)

}  // namespace

}  // namespace gradwire::operations

#endif
