// 2-bit codes and streams of them on a CPU: the kernels, and the operations of ops.py, which says what the bytes are.
#include "marks.h"
#include "family.h"

namespace gradwire {

struct TwobitEncode {
  const float* x;
  std::uint8_t* codes;
  float fire;  // the least magnitude that is sent
};
GRADWIRE_KERNEL(twobit_encode, TwobitEncode)

struct TwobitEncodeFeedback : Feedback {
  std::uint8_t* codes;
  float fire;       // the least magnitude that is sent
  float threshold;  // what is sent
};
GRADWIRE_KERNEL(twobit_encode_feedback, TwobitEncodeFeedback)

struct TwobitAddDecoded {
  Rows codes;
  float* out;
  float step;
  bool fresh;  // out counts as 0
};
GRADWIRE_KERNEL(twobit_add_decoded, TwobitAddDecoded)

// The 2-bit code with a level that differs between elements: d * level, d in [1, 2).
struct DitheredEncode {
  const float* x;
  std::uint8_t* codes;
  float level;
};
GRADWIRE_KERNEL(dithered_encode, DitheredEncode)

struct DitheredEncodeFeedback : Feedback {
  std::uint8_t* codes;
  float level;
  float threshold;  // what is sent
};
GRADWIRE_KERNEL(dithered_encode_feedback, DitheredEncodeFeedback)

// How many codes of each segment are not 0.
struct TernaryCounts {
  ByteRun codes;
  std::int64_t n;
  std::int64_t* counts;
};
GRADWIRE_KERNEL(ternary_counts, TernaryCounts)

// 2-bit codes to a bit for each, and the signs of those that are not 0. `edges`, for each segment: its part of a byte
// that another segment starts.
struct TernaryBits {
  ByteRun codes;
  std::int64_t n;
  const std::int64_t* starts;
  std::uint8_t *bitmap, *signs, *edges;
};
GRADWIRE_KERNEL(ternary_bits, TernaryBits)

// One rank's bits; `place` is that of the next sign.
struct TernaryRank {
  ByteRun bitmap, signs;
  std::int64_t place;
  float step;
};

struct TernaryAddBits {
  TernaryRank* ranks;
  std::int64_t count;
  float* out;
  std::int64_t n;
};
GRADWIRE_KERNEL(ternary_add_bits, TernaryAddBits)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/bit_words.h"
#include "kernels/compensate.h"
#include "kernels/dither.h"

namespace gradwire::GRADWIRE_TARGET {

// The layout of 2-bit codes: element i in byte i / 4, the first in the highest bits; 11 above, 10 below, 00 neither.

// 16 words of codes at a time: the bits of 16 vectors are collected first and then put in their places together.
constexpr int kTwobitStep = kLanes * kLanes;

struct TwobitBits {
  std::uint16_t above[kLanes];
  std::uint16_t below[kLanes];
};

// How many of the `count` elements of a step are in its vector number `part`.
GRADWIRE_INLINE int twobit_count(int count, int part) {
  const int rest = count - part * kLanes;
  return count == kTwobitStep || rest > kLanes ? kLanes : rest;
}

GRADWIRE_INLINE void collect(TwobitBits& bits, int part, Mask above, Mask below, int count) {
  bits.above[part] = gradwire::GRADWIRE_TARGET::bits(above) & bits_of_count(count);
  bits.below[part] = gradwire::GRADWIRE_TARGET::bits(below) & bits_of_count(count);
}

// Bit i of a 16-bit value goes to bit 8 * (i / 4) + 6 - 2 * (i % 4) of 32 bits.
GRADWIRE_INLINE U32 spread_twobit(U32 x) {
  x = (x | shl(x, 8)) & set_u32(0x00ff00ff);
  x = (x | shl(x, 4)) & set_u32(0x0f0f0f0f);
  x = (shl(x, 4) | shr(x, 2)) & set_u32(0x33333333);
  return (shl(x, 2) | shr(x, 1)) & set_u32(0x55555555);
}

GRADWIRE_INLINE void store_twobit_codes(std::uint8_t* codes, const TwobitBits& bits, int count) {
  const U32 above = load_u16(bits.above), either = above | load_u16(bits.below);
  const U32 words = spread_twobit(above) | shl(spread_twobit(either), 1);
  if (count == kTwobitStep) return store_u32(codes, words);
  std::uint32_t lanes[kLanes];
  store_u32(lanes, words);
  std::memcpy(codes, lanes, sizeof(std::uint32_t) * ((count + kLanes - 1) / kLanes));
}

// 2-bit codes of the elements at or beyond the threshold.
GRADWIRE_INLINE void twobit_encode_step(const TwobitEncode& k, std::int64_t begin, int count) {
  const F32 fire = set(k.fire), minus_fire = set(-k.fire);
  TwobitBits bits;
  for (int part = 0; part * kLanes < count; ++part) {
    const int lanes = twobit_count(count, part);
    const F32 x = load_ahead(k.x + begin + part * kLanes, lanes);
    collect(bits, part, ge(x, fire), le(x, minus_fire), lanes);
  }
  store_twobit_codes(k.codes + begin / 4, bits, count);
}

GRADWIRE_RANGE_KERNEL(twobit_encode, TwobitEncode, kTwobitStep)

// 2-bit codes of residual + grad; the residual keeps what the codes do not say. One pass over memory.
GRADWIRE_INLINE void twobit_encode_feedback_step(const TwobitEncodeFeedback& k, std::int64_t begin, int count,
                                                 U32& worst) {
  const F32 t = set(k.threshold), fire = set(k.fire), minus_fire = set(-k.fire);
  TwobitBits bits;
  for (int part = 0; part * kLanes < count; ++part) {
    const int lanes = twobit_count(count, part);
    const std::int64_t i = begin + part * kLanes;
    const F32 x = compensate(k, i, lanes, worst);
    const Mask above = ge(x, fire), below = le(x, minus_fire);
    store(k.residual + i, select(above, x - t, select(below, x + t, x)), lanes);
    collect(bits, part, above, below, lanes);
  }
  store_twobit_codes(k.codes + begin / 4, bits, count);
}

GRADWIRE_WATCHING_KERNEL(twobit_encode_feedback, TwobitEncodeFeedback, kTwobitStep)

// Adds the 2-bit payloads of all ranks, one after the other, with the sums in registers.
constexpr int kTwobitSums = 4;

// Element i of a 32-bit word of codes is 8 * (i / 4) + 6 - 2 * (i % 4) bits from its lowest end.
GRADWIRE_INLINE U32 twobit_shifts() {
  const U32 lane = iota();
  return shl(shr(lane, 2), 3) + set_u32(6) - shl(lane & set_u32(3), 1);
}

GRADWIRE_INLINE F32 twobit_values(const std::uint8_t* codes, const TwobitAddDecoded& k) {
  std::uint32_t word;
  std::memcpy(&word, codes, sizeof word);
  return lookup(table4(0.0f, 0.0f, -k.step, k.step), shr(set_u32(word), twobit_shifts()));
}

GRADWIRE_INLINE void twobit_add_vector(const TwobitAddDecoded& k, std::int64_t i, int count) {
  F32 sum = k.fresh ? set(0.0f) : load(k.out + i, count);
  const std::uint8_t* codes = k.codes.data + i / 4;
  for (std::int64_t w = 0; w < k.codes.count; ++w) sum = sum + twobit_values(codes + w * k.codes.stride, k);
  store(k.out + i, sum, count);
}

GRADWIRE_INLINE void twobit_add_decoded_step(const TwobitAddDecoded& k, std::int64_t i, int count) {
  if (count < kTwobitSums * kLanes) {
    for (int j = 0; j < count; j += kLanes) twobit_add_vector(k, i + j, count - j < kLanes ? count - j : kLanes);
    return;
  }
  F32 sums[kTwobitSums];
  for (int j = 0; j < kTwobitSums; ++j) sums[j] = k.fresh ? set(0.0f) : load_ahead(k.out + i + j * kLanes, kLanes);
  const std::uint8_t* codes = k.codes.data + i / 4;
  for (std::int64_t w = 0; w < k.codes.count; ++w, codes += k.codes.stride)
    for (int j = 0; j < kTwobitSums; ++j) sums[j] = sums[j] + twobit_values(codes + 4 * j, k);
  for (int j = 0; j < kTwobitSums; ++j) store(k.out + i + j * kLanes, sums[j]);
}

GRADWIRE_RANGE_KERNEL(twobit_add_decoded, TwobitAddDecoded, kTwobitSums * kLanes)

// 2-bit codes of the elements that reach their part of a level.
GRADWIRE_INLINE void dithered_encode_step(const DitheredEncode& k, std::int64_t begin, int count) {
  const F32 level = set(k.level), minus_level = set(-k.level);
  TwobitBits bits;
  for (int part = 0; part * kLanes < count; ++part) {
    const int lanes = twobit_count(count, part);
    const std::int64_t i = begin + part * kLanes;
    const F32 x = load_ahead(k.x + i, lanes), factor = dither(i);
    collect(bits, part, ge(x, level * factor), le(x, minus_level * factor), lanes);
  }
  store_twobit_codes(k.codes + begin / 4, bits, count);
}

GRADWIRE_RANGE_KERNEL(dithered_encode, DitheredEncode, kTwobitStep)

// 2-bit codes of residual + grad where it reaches its part of a level; the residual keeps what the codes do not say.
GRADWIRE_INLINE void dithered_encode_feedback_step(const DitheredEncodeFeedback& k, std::int64_t begin, int count,
                                                   U32& worst) {
  const F32 t = set(k.threshold), level = set(k.level), minus_level = set(-k.level);
  TwobitBits bits;
  for (int part = 0; part * kLanes < count; ++part) {
    const int lanes = twobit_count(count, part);
    const std::int64_t i = begin + part * kLanes;
    const F32 x = compensate(k, i, lanes, worst), factor = dither(i);
    const Mask above = ge(x, level * factor), below = le(x, minus_level * factor);
    store(k.residual + i, select(above, x - t, select(below, x + t, x)), lanes);
    collect(bits, part, above, below, lanes);
  }
  store_twobit_codes(k.codes + begin / 4, bits, count);
}

GRADWIRE_WATCHING_KERNEL(dithered_encode_feedback, DitheredEncodeFeedback, kTwobitStep)

// 2-bit codes as a bit for each that is not 0, and the signs of those.

// 32 codes from element i on, each in two bits from the lowest up: the sign below, whether it is not 0 above.
GRADWIRE_INLINE std::uint64_t codes_from(const ByteRun& codes, std::int64_t i) {
  std::uint64_t x = word_at(codes, i / 4);
  x = (x >> 4 & 0x0f0f0f0f0f0f0f0f) | (x & 0x0f0f0f0f0f0f0f0f) << 4;
  return (x >> 2 & 0x3333333333333333) | (x & 0x3333333333333333) << 2;
}

GRADWIRE_INLINE std::uint32_t even_bits(std::uint64_t x) {
#if defined(GRADWIRE_FAST_BITS)
  return std::uint32_t(gather_bits(x, 0x5555555555555555));
#endif
  x &= 0x5555555555555555;
  x = (x | x >> 1) & 0x3333333333333333;
  x = (x | x >> 2) & 0x0f0f0f0f0f0f0f0f;
  x = (x | x >> 4) & 0x00ff00ff00ff00ff;
  x = (x | x >> 8) & 0x0000ffff0000ffff;
  return std::uint32_t(x | x >> 16);
}

void ternary_counts(const TernaryCounts& args, std::int64_t begin, std::int64_t end) {
  const TernaryCounts k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment;
    std::int64_t found = 0;
    for (std::int64_t i = first; i < stop; i += 32)
      found += __builtin_popcountll(word_at(k.codes, i / 4) & 0xaaaaaaaaaaaaaaaa);
    k.counts[first / kMarkSegment] = found;
  }
}

void ternary_bits(const TernaryBits& args, std::int64_t begin, std::int64_t end) {
  const TernaryBits k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment, segment = first / kMarkSegment;
    BitSink signs = bit_sink(k.signs, k.starts[segment], k.edges + segment);
    for (std::int64_t i = first; i < stop; i += 32) {
      const std::uint64_t codes = codes_from(k.codes, i);
      const std::uint32_t marks = even_bits(codes >> 1);
      std::memcpy(k.bitmap + i / 8, &marks, stop - i >= 32 ? 4 : std::size_t((stop - i + 7) / 8));
      put_bits(signs, gather_bits(even_bits(codes), marks), __builtin_popcount(marks));
    }
    finish_bits(signs);
  }
}

// Adds +step or -step where a bitmap says so, all ranks to 64 elements at a time.
GRADWIRE_INLINE void add_steps(Sums& sums, TernaryRank& rank, std::int64_t i, std::int64_t n) {
  prefetch_next(rank.bitmap, i / 8), prefetch_next(rank.signs, rank.place / 8);
  const std::uint64_t marks = bits_of_elements(rank.bitmap, i, n);
  const std::uint64_t positive = scatter_bits(bits_from(rank.signs, rank.place), marks);
  rank.place += __builtin_popcountll(marks);
  const F32 up = set(rank.step), down = set(-rank.step);
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
    const F32 step = select(mask_of(std::uint16_t(positive >> 16 * part)), up, down);
    sums.of[part] = select(mask_of(std::uint16_t(marks >> 16 * part)), sums.of[part] + step, sums.of[part]);
  }
}

void ternary_add_bits(const TernaryAddBits& args, std::int64_t begin, std::int64_t end) {
  const TernaryAddBits k = args;
  for (std::int64_t i = begin; i < end; i += 64) {
    Sums sums = load_sums(k.out + i, end - i);
    for (std::int64_t w = 0; w < k.count; ++w) add_steps(sums, k.ranks[w], i, k.n);
    store_sums(k.out + i, sums, end - i);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <algorithm>
#include <cmath>
#include <vector>

#include "marks.h"
#include "operation.h"
#include "rice.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

// The least magnitude that is sent: Strom's code is the 2-bit code with a strict comparison.
float least(double threshold, bool strict) {
  return strict ? std::nextafter(float(threshold), INFINITY) : float(threshold);
}

void twobit_encode(const float* x, std::uint8_t* codes, double threshold, bool strict, Size n, int threads) {
  run(kernels::twobit_encode, {x, codes, least(threshold, strict)}, n, 16, threads);
}
GRADWIRE_OPERATION(twobit_encode)

void twobit_encode_feedback(float* grad, float* residual, std::uint8_t* codes, double threshold,
                            Maybe<std::int32_t> status, bool strict, Size n, int threads) {
  run(kernels::twobit_encode_feedback,
      {{grad, residual, status.data}, codes, least(threshold, strict), float(threshold)}, n, 16, threads);
}
GRADWIRE_OPERATION(twobit_encode_feedback)

void dithered_encode(const float* x, std::uint8_t* codes, const float* level, Size n, int threads) {
  run(kernels::dithered_encode, {x, codes, *level}, n, 16, threads);
}
GRADWIRE_OPERATION(dithered_encode)

void dithered_encode_feedback(float* grad, float* residual, std::uint8_t* codes, const float* threshold,
                              const float* level, Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::dithered_encode_feedback, {{grad, residual, status.data}, codes, *level, *threshold}, n, 16, threads);
}
GRADWIRE_OPERATION(dithered_encode_feedback)

// The factor of payload w; 1 where there are none.
float factor_at(const Column& factors, Size w) { return factor_of({factors.data, 0, factors.stride}, w); }

void twobit_add_decoded(Column codes, float* out, double threshold, double scale, Column steps, bool fresh,
                        Size ranks, Size n, int threads) {
  const float step = float(scale) * float(threshold);
  if (steps.data == nullptr || ranks == 0)
    return run(kernels::twobit_add_decoded, {codes.rows(ranks), out, step, fresh}, n, 16, threads);
  // Neighbours of equal step together: where the ranks agree, that is one pass over `out`.
  for (Size w = 0, end; w < ranks; w = end) {
    const float factor = factor_at(steps, w);
    for (end = w + 1; end < ranks && factor_at(steps, end) == factor;) ++end;
    const Rows some = {codes.data + w * codes.stride, end - w, codes.stride};
    run(kernels::twobit_add_decoded, {some, out, step * factor, fresh && w == 0}, n, 16, threads);
  }
}

GRADWIRE_OPERATION(twobit_add_decoded)

// Streams: a byte that says the form, then what ops.py lays down.
struct Encoding {
  const std::uint8_t* codes;  // of 2 bits, in whole words
  std::uint8_t* stream;       // a byte more than the codes
  bool words;
};

enum Form { kDense = 0, kBitmap = 1, kRice = 2, kWords = 255 };

constexpr int kLargestShift = 30;
constexpr std::uint64_t kFired = 0xaaaaaaaaaaaaaaaa;  // the upper bit of each code

std::int64_t code_bytes(std::int64_t n) { return (n + 15) / 16 * 4; }
std::int64_t bytes_of(std::int64_t bits) { return (bits + 7) / 8; }

// 32 codes, the first in the highest bits.
std::uint64_t codes_at(const Encoding& t, std::int64_t n, std::int64_t i) {
  return __builtin_bswap64(Bytes{t.codes, code_bytes(n)}.word(i / 4));
}

// Calls f(place, positive) for every code that is not 0.
template <class F>
void for_each(const Encoding& t, std::int64_t n, const F& f) {
  for (std::int64_t i = 0; i < n; i += 32) {
    const std::uint64_t word = codes_at(t, n, i);
    for (std::uint64_t fired = word & kFired; fired != 0;) {
      const int bit = __builtin_clzll(fired);
      f(i + bit / 2, (word >> (62 - bit) & 1) != 0);
      fired ^= std::uint64_t(1) << (63 - bit);
    }
  }
}

// The last code that is not 0; -1 where all are.
std::int64_t last_place(const Encoding& t, std::int64_t n) {
  for (std::int64_t i = (n - 1) / 32 * 32; n > 0 && i >= 0; i -= 32)
    if (const std::uint64_t fired = codes_at(t, n, i) & kFired; fired != 0) return i + (63 - __builtin_ctzll(fired)) / 2;
  return -1;
}

std::int64_t quotients(const Encoding& t, std::int64_t n, std::int64_t k, int shift) {
  if (shift == 0) return last_place(t, n) + 1 - k;  // whole gaps
  std::int64_t sum = 0, last = -1;
  for_each(t, n, [&](std::int64_t place, bool) { sum += (place - last - 1) >> shift, last = place; });
  return sum;
}

int varint_size(std::int64_t k) {
  int size = 1;
  for (; k >= 128; k >>= 7) ++size;
  return size;
}

std::uint8_t* put_varint(std::uint8_t* p, std::int64_t k) {
  for (; k >= 128; k >>= 7) *p++ = std::uint8_t(k | 128);
  *p++ = std::uint8_t(k);
  return p;
}

void write_words(const Encoding& t, std::int64_t n, std::uint8_t* p) {
  for_each(t, n, [&](std::int64_t place, bool positive) {
    const std::uint32_t word = std::uint32_t(place) << 1 | std::uint32_t(positive);
    std::memcpy(p, &word, sizeof word);
    p += sizeof word;
  });
}

void write_rice(const Encoding& t, std::int64_t n, std::int64_t k, int shift, std::uint8_t* p,
                const std::uint8_t* end) {
  std::uint8_t *const low = p + bytes_of(k), *const high = low + bytes_of(k * shift);
  std::fill(high, high + (end - high), std::uint8_t{0});
  BitWriter signs(p);
  RiceWriter gaps(shift, low, high);
  for_each(t, n, [&](std::int64_t place, bool positive) { gaps.put(place), signs.put(positive, 1); });
  gaps.finish();
  signs.finish();
}

struct Choice {
  int form;
  std::int64_t size;
};

void prefer(Choice& best, int form, std::int64_t size) {
  if (size < best.size) best = {form, size};
}

Choice choose(const Encoding& t, std::int64_t n, std::int64_t k, int shift) {
  const std::int64_t counted = 1 + varint_size(k);
  Choice best = {kDense, 1 + code_bytes(n)};
  if (t.words) {
    prefer(best, kWords, counted + 4 * k);
    return best;
  }
  prefer(best, kBitmap, 1 + bytes_of(n) + bytes_of(k));
  const std::int64_t fixed = counted + bytes_of(k) + bytes_of(k * shift);
  // The quotients take a pass over the codes: only where the gaps can win.
  if (fixed + bytes_of(k) < best.size) prefer(best, kRice + shift, fixed + bytes_of(k + quotients(t, n, k, shift)));
  return best;
}

// Adds to a tensor what the entries of a stream say.
struct Adder {
  float* out;
  float step;

  void operator()(std::int64_t place, bool positive) const {
    out[place] = out[place] + (positive ? step : -step);
  }
};

// One rank's bitmap and signs, and how many of these there are in each segment, and then before it.
struct Bitmap {
  ByteRun marks, signs;
  std::vector<std::int64_t> starts;
  float step;
};

Bitmap bitmap_of(Bytes row, float step, std::int64_t n) {
  const Bytes body = row.from(1), marks = body.first(bytes_of(n)), signs = body.from(bytes_of(n));
  std::vector<std::int64_t> starts(std::size_t(mark_segments(n)));
  return {{marks.data, marks.size}, {signs.data, signs.size}, std::move(starts), step};
}

void add_bitmaps(float* out, std::vector<Bitmap>& bitmaps, std::int64_t n, int threads) {
  count_call();
  const auto count = [&](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (Bitmap& b : bitmaps) kernels::count_ones({b.marks, n, b.starts.data()}, begin, end);
  };
  const auto lay_out = [&] {
    for (Bitmap& b : bitmaps) b.starts = starts_of(b.starts.data(), mark_segments(n), n);
  };
  const auto add = [&](std::int64_t begin, std::int64_t end, std::int64_t) {
    std::vector<TernaryRank> ranks;
    for (const Bitmap& b : bitmaps)
      ranks.push_back({b.marks, b.signs, b.starts[std::size_t(begin / kMarkSegment)], b.step});
    kernels::ternary_add_bits({ranks.data(), std::int64_t(ranks.size()), out, n}, begin, end);
  };
  parallel_twice(n, kMarkSegment, threads, count, lay_out, add);
}

void add_words(Bytes body, const Adder& add, std::int64_t n, std::int64_t k) {
  std::int64_t last = -1;
  for (std::int64_t j = 0; j < k; ++j) {
    const std::uint32_t word = std::uint32_t(body.word(4 * j));
    const std::int64_t place = word >> 1;
    if (place <= last || place >= n) return;
    add(place, (word & 1) != 0);
    last = place;
  }
}

void add_rice(Bytes body, const Adder& add, std::int64_t n, std::int64_t k, int shift) {
  const Bytes low = body.from(bytes_of(k)).first(bytes_of(k * shift));
  RiceReader places(shift, low, body.from(bytes_of(k) + bytes_of(k * shift)), n);
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int64_t place = places.next();
    if (place < 0) return;
    add(place, body.bits(j, 1) != 0);
  }
}

// The count in front of the entries, which `body` then starts with; 0 where it makes no sense.
std::int64_t read_varint(Bytes& body, std::int64_t n) {
  std::int64_t k = 0;
  for (int i = 0; i < 5 && i < body.size; ++i) {
    k |= std::int64_t(body.data[i] & 127) << 7 * i;
    if (body.data[i] >= 128) continue;
    body = body.from(i + 1);
    return k <= n ? k : 0;
  }
  body = body.from(body.size);
  return 0;
}

void add_dense(Bytes body, const Adder& add, std::int64_t n, int threads) {
  const std::int64_t whole = std::min(n, body.size / 4 * 16);
  const TwobitAddDecoded dense = {{body.data, 1, 0}, add.out, add.step};
  run(kernels::twobit_add_decoded, dense, whole, 16, threads);
  if (whole == n) return;
  // A row that ends too early: what is missing is 0, and is added like any other 0.
  for (std::int64_t i = whole; i < n; ++i) {
    const std::uint64_t byte = body.word(i / 4) & 255;
    const int code = int(byte >> (6 - 2 * (i % 4)) & 3);
    if (code >= 2)
      add(i, code == 3);
    else
      add.out[i] = add.out[i] + 0.0f;
  }
}

void add_row(const Adder& add, Bytes row, std::int64_t n, int threads) {
  const int form = row.size > 0 ? row.data[0] : int(kDense);
  Bytes body = row.from(1);
  if (form == kDense) return add_dense(body, add, n, threads);
  count_call();
  const std::int64_t k = read_varint(body, n);
  if (form == kWords) return add_words(body, add, n, k);
  if (form - kRice <= kLargestShift) add_rice(body, add, n, k, form - kRice);
}

void ternary_encode(const std::uint8_t* codes, std::int32_t* used, std::uint8_t* stream, bool words, Size n,
                    int threads) {
  count_call();
  const Encoding t = {codes, stream, words};
  const ByteRun all = {codes, code_bytes(n)};
  std::uint8_t *const body = stream + 1, *const signs = body + bytes_of(n);
  // How many codes are not 0, in each segment, and then before each and in all.
  std::vector<std::int64_t> starts(std::size_t(mark_segments(n)));
  std::vector<std::uint8_t> edges(starts.size());
  int shift = 0;
  Choice choice = {};
  const auto count = [&](Size begin, Size end, Size) {
    kernels::ternary_counts({all, n, starts.data()}, begin, end);
  };
  const auto choose_form = [&] {
    starts = starts_of(starts.data(), mark_segments(n), n);
    shift = rice_shift(n, starts.back());
    choice = choose(t, n, starts.back(), shift);
  };
  const auto write_bits = [&](Size begin, Size end, Size) {
    if (choice.form == kBitmap)
      kernels::ternary_bits({all, n, starts.data(), body, signs, edges.data()}, begin, end);
  };
  parallel_twice(n, kMarkSegment, threads, count, choose_form, write_bits);
  const std::int64_t k = starts.back();
  stream[0] = std::uint8_t(choice.form);
  *used = std::int32_t(choice.size);
  if (choice.form == kDense)
    std::copy_n(codes, code_bytes(n), body);
  else if (choice.form == kBitmap)
    join_edges(signs, starts, edges, 1);
  else if (choice.form == kWords)
    write_words(t, n, put_varint(body, k));
  else
    write_rice(t, n, k, shift, put_varint(body, k), stream + choice.size);
}
GRADWIRE_OPERATION(ternary_encode)

// Neighbours that are all bitmaps are added in one pass.
void ternary_add_decoded(Column streams, float* out, double threshold, double scale, Column steps, Size ranks,
                         Size length, Size n, int threads) {
  if (length < 0) throw std::invalid_argument("a length must not be negative");
  const float step = float(scale) * float(threshold);
  std::vector<Bitmap> bitmaps;
  for (Size w = 0; w <= ranks; ++w) {
    const bool more = w < ranks;
    const Bytes row = {streams.data + w * streams.stride, more ? length : 0};
    const float own = step * (more ? factor_at(steps, w) : 1.0f);
    if (row.size > 0 && row.data[0] == kBitmap) {
      bitmaps.push_back(bitmap_of(row, own, n));
      continue;
    }
    if (!bitmaps.empty()) add_bitmaps(out, bitmaps, n, threads);
    bitmaps.clear();
    if (more) add_row({out, own}, row, n, threads);
  }
}
GRADWIRE_OPERATION(ternary_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(ternary) {
  using namespace selftest;
  check(target, "twobit_encode", kernels::twobit_encode,
        [](Buffers& x, Size) { return TwobitEncode{x.a.data(), x.bytes.data(), 0.5f}; });
  for (const bool watched : {false, true})
    check(target, "twobit_encode_feedback", kernels::twobit_encode_feedback, [=](Buffers& x, Size) {
      std::int32_t* const status = watched ? x.status.data() : nullptr;
      return TwobitEncodeFeedback{{x.a.data(), x.b.data(), status}, x.bytes.data(), 0.5f, 0.5f};
    });
  check(target, "twobit_add_decoded", kernels::twobit_add_decoded,
        [](Buffers& x, Size n) { return TwobitAddDecoded{x.rows(n), x.a.data(), 0.3f, false}; });
  check(target, "twobit_add_decoded", kernels::twobit_add_decoded,
        [](Buffers& x, Size n) { return TwobitAddDecoded{x.rows(n), x.a.data(), 0.3f, true}; });
  check(target, "dithered_encode", kernels::dithered_encode,
        [](Buffers& x, Size) { return DitheredEncode{x.a.data(), x.bytes.data(), 0.4f}; });
  check(target, "dithered_encode_feedback", kernels::dithered_encode_feedback, [](Buffers& x, Size) {
    return DitheredEncodeFeedback{{x.a.data(), x.b.data(), x.status.data()}, x.bytes.data(), 0.4f, 0.7f};
  });
  for (const bool words : {false, true})
    for (const float threshold : {0.1f, 1.5f, 30.0f})
      compare(target, "ternary_encode", [=](Buffers& x, Size n) {
        std::vector<std::uint8_t> codes(std::size_t(code_bytes(n)));
        twobit_encode(x.a.data(), codes.data(), threshold, false, n, 1);
        ternary_encode(codes.data(), x.status.data(), x.bytes.data(), words, n, 1);
      });
  for (const Size form : {0, 1, 5, 255})
    compare(target, "ternary_add_decoded", [=](Buffers& x, Size n) {
      const Rows rows = x.rows(n);
      for (Size w = 0; w < kRanks; ++w) x.bytes[std::size_t(w * rows.stride)] = std::uint8_t(form);
      ternary_add_decoded({rows.data, rows.stride}, x.a.data(), 0.7, 1.0, {nullptr, 0}, kRanks, n, n, 1);
    });
}
#endif

}  // namespace gradwire::operations

#endif
