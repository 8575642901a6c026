#include "places.h"

#include <algorithm>

#include "dispatch.h"
#include "rice.h"

namespace gradwire {

namespace {

constexpr std::int64_t kSegment = 65536;

std::int64_t bytes_of(std::int64_t bits) { return (bits + 7) / 8; }

// Calls f(place) for every place below n that the counts cover.
template <class F>
void for_each(const Places& p, const F& f) {
  std::int64_t j = 0;
  for (std::int64_t begin = 0; begin < p.n; begin += kSegment) {
    const std::int64_t count = std::max<std::int64_t>(p.counts[begin / kSegment], 0), stop = std::min(j + count, p.k);
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

  void put(std::int64_t place) {
    p_.indices[count_++] = std::uint16_t(place);
    ++p_.counts[place / kSegment];
  }

 private:
  Places p_;
  std::int64_t count_ = 0;
};

struct RiceBytes {
  int shift;
  std::int64_t low, high;
};

RiceBytes rice_bytes(const Places& p) {
  const int shift = rice_shift(p.n, p.k);
  return {shift, bytes_of(p.k * shift), bytes_of(p.k + ((p.n - p.k) >> shift))};
}

}  // namespace

void rice_encode(const Places& p, std::uint8_t* stream) {
  count_call();
  const RiceBytes bytes = rice_bytes(p);
  std::fill_n(stream, bytes.low + bytes.high, std::uint8_t(0));
  RiceWriter writer(bytes.shift, stream, stream + bytes.low);
  std::int64_t last = -1;
  for_each(p, [&](std::int64_t place) {
    if (place > last) writer.put(last = place);  // only increasing places fit for certain
  });
  writer.finish();
}

void rice_decode(const Places& p, const std::uint8_t* stream) {
  count_call();
  const RiceBytes bytes = rice_bytes(p);
  RiceReader reader(bytes.shift, {stream, bytes.low}, {stream + bytes.low, bytes.high}, p.n);
  PlaceWriter writer(p);
  for (std::int64_t place; !writer.full() && (place = reader.next()) >= 0;) writer.put(place);
}

void bitmap_encode(const Places& p, std::uint8_t* bitmap) {
  count_call();
  std::fill_n(bitmap, bytes_of(p.n), std::uint8_t(0));
  for_each(p, [&](std::int64_t place) { bitmap[place / 8] |= std::uint8_t(1u << place % 8); });
}

void bitmap_decode(const Places& p, const std::uint8_t* bitmap) {
  count_call();
  Ones ones({bitmap, bytes_of(p.n)});
  PlaceWriter writer(p);
  for (std::int64_t place; !writer.full() && (place = ones.next()) >= 0 && place < p.n;) writer.put(place);
}

}  // namespace gradwire
