// Signed powers of two in 4 bits on a CPU: the kernels, and the operations of ops.py; _exponents.py says what they are.
#include "sparse.h"

namespace gradwire {

// Powers of two as 4 bits: the distance of the exponent from the largest one, and a sign; two to a byte, the first in
// its lower half. `edges`, for each segment: its part of a byte that another segment starts.
struct ExponentCodes {
  const float* x;
  const std::uint8_t* bitmap;
  const std::int64_t* starts;
  std::uint8_t* codes;
  std::uint8_t* edges;
  std::int32_t top;
};
GRADWIRE_KERNEL_SECOND(exponent_codes, ExponentCodes)

// One rank's; `place`: how many codes there are before the range, and then before what follows it.
struct ExponentRank {
  ByteRun bitmap, codes;
  std::int64_t place;
  float addends[16];  // of each code
};

struct ExponentAddDecoded {
  ExponentRank* ranks;
  std::int64_t count;
  float* out;
  std::int64_t n;
};
GRADWIRE_KERNEL_SECOND(exponent_add_decoded, ExponentAddDecoded)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/bit_words.h"

namespace gradwire::GRADWIRE_TARGET {

// 16 codes of 4 bits in a word, the first in the lowest bits: between their lanes and the places where they are marked.

// For each of 8 bits how many lower ones are set, a nibble each; and the reverse: which one is the j-th that is set.
struct Ranks {
  std::uint32_t below[256], place[256];
};

constexpr Ranks make_ranks() {
  Ranks ranks = {};
  for (int bits = 0; bits < 256; ++bits)
    for (int lane = 0, below = 0; lane < 8; below += bits >> lane & 1, ++lane) {
      ranks.below[bits] |= std::uint32_t(below) << 4 * lane;
      if (bits >> lane & 1) ranks.place[bits] |= std::uint32_t(lane) << 4 * below;
    }
  return ranks;
}

static constexpr Ranks kRanks = make_ranks();

GRADWIRE_INLINE U32 lanes_of_nibbles(std::uint64_t x) {
  const U32 low = set_u32(std::uint32_t(x)), high = set_u32(std::uint32_t(x >> 32));
  return shr(select(ge(iota(), set_u32(8)), high, low), shl(iota() & set_u32(7), 2)) & set_u32(15);
}

#if defined(GRADWIRE_FAST_BITS)
GRADWIRE_INLINE std::uint64_t mask_of_nibbles(std::uint16_t marks) {
  return scatter_bits(marks, 0x1111111111111111) * 15;
}
// To each marked lane its own of the lowest nibbles of x, in order. What the others get is of no meaning.
GRADWIRE_INLINE U32 spread_nibbles(std::uint64_t x, std::uint16_t marks) {
  return lanes_of_nibbles(scatter_bits(x, mask_of_nibbles(marks)));
}
// The marked nibbles of x, side by side from the lowest on.
GRADWIRE_INLINE std::uint64_t gather_nibbles(std::uint64_t x, std::uint16_t marks) {
  return gather_bits(x, mask_of_nibbles(marks));
}
#else
// To lane j the nibble of x that nibble j of `places` names.
GRADWIRE_INLINE U32 pick_nibbles(std::uint64_t x, std::uint64_t places) {
  const U32 place = lanes_of_nibbles(places);
  const U32 low = set_u32(std::uint32_t(x)), high = set_u32(std::uint32_t(x >> 32));
  return shr(select(ge(place, set_u32(8)), high, low), shl(place & set_u32(7), 2)) & set_u32(15);
}
GRADWIRE_INLINE U32 spread_nibbles(std::uint64_t x, std::uint16_t marks) {
  const std::uint32_t lower = 0x11111111u * std::uint32_t(__builtin_popcount(marks & 255));
  return pick_nibbles(x, kRanks.below[marks & 255] | std::uint64_t(kRanks.below[marks >> 8] + lower) << 32);
}
GRADWIRE_INLINE std::uint64_t gather_nibbles(std::uint64_t x, std::uint16_t marks) {
  if (marks == 0xffff) return x;
  const int low = 4 * __builtin_popcount(marks & 255), all = 4 * __builtin_popcount(marks);
  const std::uint64_t upper = kRanks.place[marks >> 8] | 0x88888888;
  store_u4(&x, pick_nibbles(x, kRanks.place[marks & 255] | upper << low));
  return x & ((std::uint64_t(1) << all) - 1);
}
#endif

// The codes of the marked elements: how far the rounded exponent is below the largest, and the sign.

// The exponent of |x| rounded to a power of two; 255 only for what is not finite.
GRADWIRE_INLINE U32 rounded_exponent(F32 x) {
  const U32 size = abs_bits(x), rounded = shr(size + set_u32(0x400000), 23), most = set_u32(254);
  return select(ge(size, set_u32(0x7f800000)), set_u32(255), select(gt(rounded, most), most, rounded));
}

GRADWIRE_INLINE U32 exponent_code(const ExponentCodes& k, F32 x) {
  const U32 sign = select(lt(x, set(0.0f)), set_u32(8), set_u32(0));
  return (set_u32(std::uint32_t(k.top)) - rounded_exponent(x)) | sign;
}

// The marks for which there are codes.
GRADWIRE_INLINE std::uint64_t coded_of(std::uint64_t marks, std::int64_t left) {
  while (__builtin_popcountll(marks) > (left < 0 ? 0 : left)) marks ^= std::uint64_t(1) << (63 - __builtin_clzll(marks));
  return marks;
}

// `room` is for how many codes there is room: marks beyond what the counts say write nothing.
GRADWIRE_INLINE void exponent_step(const ExponentCodes& k, BitSink& sink, std::int64_t i, int count,
                                   std::int64_t& room) {
  std::uint16_t marks = 0;
  std::memcpy(&marks, k.bitmap + i / 8, count > 8 ? 2 : 1);
  marks = std::uint16_t(coded_of(marks, room)), room -= __builtin_popcount(marks);
  std::uint64_t codes;
  store_u4(&codes, exponent_code(k, load_ahead(k.x + i, count)));
  codes = gather_nibbles(codes, marks);
  const int bits = 4 * __builtin_popcount(marks), first = bits < 32 ? bits : 32;
  put_bits(sink, codes & 0xffffffff, first);
  put_bits(sink, codes >> 32, bits - first);
}

void exponent_codes(const ExponentCodes& args, std::int64_t begin, std::int64_t end) {
  const ExponentCodes k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment, segment = first / kMarkSegment;
    BitSink sink = bit_sink(k.codes, 4 * k.starts[segment], k.edges + segment);
    std::int64_t i = first, room = k.starts[segment + 1] - k.starts[segment];
    for (; stop - i >= kLanes; i += kLanes) exponent_step(k, sink, i, kLanes, room);
    if (i < stop) exponent_step(k, sink, i, int(stop - i), room);
    finish_bits(sink);
  }
}

// The sum of what codes stand for. All ranks to 64 elements at a time.

GRADWIRE_INLINE void add_powers(Sums& sums, ExponentRank& rank, std::int64_t i, std::int64_t n) {
  prefetch_next(rank.bitmap, i / 8), prefetch_next(rank.codes, rank.place / 2);
  const std::uint64_t marks = bits_of_elements(rank.bitmap, i, n);
  std::int64_t place = rank.place;
  rank.place += __builtin_popcountll(marks);
  const Table16 addends = table16(rank.addends);
  const std::uint64_t coded = coded_of(marks, 2 * rank.codes.size - place);
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
    const std::uint16_t here = std::uint16_t(coded >> 16 * part);
    const F32 addend = lookup(addends, spread_nibbles(bits_from(rank.codes, 4 * place), here));
    sums.of[part] = select(mask_of(here), sums.of[part] + addend, sums.of[part]);
    place += __builtin_popcount(here);
  }
}

void exponent_add_decoded(const ExponentAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const ExponentAddDecoded k = args;
  for (std::int64_t i = begin; i < end; i += 64) {
    Sums sums = load_sums(k.out + i, end - i);
    for (std::int64_t w = 0; w < k.count; ++w) add_powers(sums, k.ranks[w], i, k.n);
    store_sums(k.out + i, sums, end - i);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <algorithm>
#include <cstring>
#include <vector>

#include "marks.h"
#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

std::int32_t number_at(const Rows& rows, std::int64_t rank) {
  std::int32_t number;
  std::memcpy(&number, rows.data + rank * rows.stride, sizeof number);
  return number;
}

// One rank's payload, and how many codes there are in each segment, and then before it.
struct Sent {
  ExponentRank rank;
  std::vector<std::int64_t> starts;
};

// What each code adds: of 255 no number.
void fill_addends(ExponentRank& rank, int top, float scale) {
  for (int code = 0; code < 16; ++code) {
    const std::uint32_t exponent = std::uint32_t(std::max(top - code % 8, 0));
    const std::uint32_t bits = (top == 255 ? 0x7fc00000 : exponent << 23) | (code >= 8 ? 0x80000000 : 0);
    float power;
    std::memcpy(&power, &bits, sizeof power);
    rank.addends[code] = power * scale;
  }
}

Sent sent_by(Rows streams, Size length, std::int32_t used, std::int32_t top, float scale, Size rank, Size n) {
  const std::uint8_t* const data = streams.data + rank * streams.stride;
  const Size size = std::clamp<Size>(used, 0, length), middle = std::min((n + 7) / 8, size);
  Sent s = {{{data, middle}, {data + middle, size - middle}, 0, {}},
            std::vector<std::int64_t>(std::size_t(mark_segments(n)))};
  fill_addends(s.rank, std::clamp(top, 0, 255), scale);
  return s;
}

void exponent_encode(const float* x, const std::uint8_t* bitmap, const std::int32_t* counts, Maybe<std::uint8_t> codes,
                     Size top, Size pairs, Size n, int threads) {
  const auto starts = starts_of(counts, mark_segments(n), 2 * pairs);
  std::vector<std::uint8_t> edges(starts.size() - 1);
  run(kernels::exponent_codes, {x, bitmap, starts.data(), codes.data, edges.data(), std::int32_t(top)}, n,
      kMarkSegment, threads);
  join_edges(codes.data, starts, edges, 4);
}
GRADWIRE_OPERATION(exponent_encode)

void exponent_add_decoded(Column streams, Column used, Column tops, float* out, double scale, Size count, Size length,
                          Size n, int threads) {
  std::vector<Sent> ranks;
  for (Size w = 0; w < count; ++w)
    ranks.push_back(sent_by(streams.rows(count), length, number_at(used.rows(count), w), number_at(tops.rows(count), w),
                            float(scale), w, n));
  count_call();
  const auto count_codes = [&](Size begin, Size end, Size) {
    for (Sent& s : ranks) kernels::count_ones({s.rank.bitmap, n, s.starts.data()}, begin, end);
  };
  const auto lay_out = [&] {
    for (Sent& s : ranks) s.starts = starts_of(s.starts.data(), mark_segments(n), n);
  };
  const auto add = [&](Size begin, Size end, Size) {
    std::vector<ExponentRank> here;
    for (const Sent& s : ranks) {
      here.push_back(s.rank);
      here.back().place = s.starts[std::size_t(begin / kMarkSegment)];
    }
    kernels::exponent_add_decoded({here.data(), count, out, n}, begin, end);
  };
  parallel_twice(n, kMarkSegment, threads, count_codes, lay_out, add);
}
GRADWIRE_OPERATION(exponent_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(exponents) {
  using namespace selftest;
  // Codes behind the marks of whole rows that are random.
  compare(target, "exponent_encode", [](Buffers& x, Size n) {
    std::int32_t counts[2] = {};
    run(kernels::mark_beyond, {{x.bytes.data(), counts}, x.a.data(), 1.5f, 0.7f}, n, kMarkSegment, 1);
    const Size pairs = (counts[0] + counts[1] + 1) / 2;
    exponent_encode(x.a.data(), x.bytes.data(), counts, {x.bytes.data() + Buffers::row_bytes(n)}, 130, pairs, n, 1);
  });
  for (const Size share : {1, 3, 8})
    compare(target, "exponent_add_decoded", [&](Buffers& x, Size n) {
      // Rows of n bytes and less: some end within their codes, or within their marks.
      const std::int32_t used[kRanks] = {std::int32_t(n), std::int32_t(n / share), std::int32_t(n / 9)};
      const std::int32_t tops[kRanks] = {130, 3, 255};
      const auto column = [](const std::int32_t* from) {
        return Column{reinterpret_cast<const std::uint8_t*>(from), sizeof *from};
      };
      const Rows rows = x.rows(n);
      exponent_add_decoded({rows.data, rows.stride}, column(used), column(tops), x.a.data(), 0.3, kRanks, n, n, 1);
    });
}
#endif

}  // namespace gradwire::operations

#endif
