// 8-bit codes on a CPU: the kernels, and the operations of ops.py, which says what the bytes are.
#include "family.h"

namespace gradwire {

// The largest magnitude, as bits without the sign, joins what is at `out`.
struct Largest {
  const float* x;
  std::uint32_t* out;
};
GRADWIRE_KERNEL(largest, Largest)

struct LargestSum {
  const float *grad, *residual;
  std::uint32_t* out;
};
GRADWIRE_KERNEL(largest_sum, LargestSum)

enum class Codebook : int { linear, dynamic, e4m3, e5m2 };

// `book` holds the 256 values of the codes, and what the encoder of "dynamic" needs. A block of 0 is the whole tensor,
// whose scale is there already.
struct Eightbit {
  float* scales;
  std::uint8_t* codes;
  const float* book;
  Codebook kind;
  std::int64_t block;
};

struct EightbitEncode : Eightbit {
  const float* x;
};
GRADWIRE_KERNEL(eightbit_encode, EightbitEncode)

struct EightbitEncodeFeedback : Feedback, Eightbit {};
GRADWIRE_KERNEL(eightbit_encode_feedback, EightbitEncodeFeedback)

struct EightbitAddDecoded {
  Rows scales;
  Rows codes;
  float* out;
  const float* book;
  Codebook kind;
  std::int64_t block;
  float scale;
  bool fresh;  // out counts as 0
};
GRADWIRE_KERNEL(eightbit_add_decoded, EightbitAddDecoded)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/compensate.h"

namespace gradwire::GRADWIRE_TARGET {

// The largest magnitude of a tensor: that of a NaN is larger than infinity.

// Four at a time, since each maximum waits for the one before.
constexpr int kWatches = 4;

GRADWIRE_INLINE void join_largest(std::uint32_t* out, std::uint32_t found) {
  std::uint32_t known = __atomic_load_n(out, __ATOMIC_RELAXED);
  while (found > known && !__atomic_compare_exchange_n(out, &known, found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// The largest magnitude of take(i, number of lanes) for i in steps of 16 over a range.
template <class Take>
GRADWIRE_INLINE std::uint32_t largest_of(std::int64_t begin, std::int64_t end, const Take& take) {
  U32 worst[kWatches] = {set_u32(0), set_u32(0), set_u32(0), set_u32(0)};
  std::int64_t i = begin;
  for (; end - i >= kWatches * kLanes; i += kWatches * kLanes)
    for (int j = 0; j < kWatches; ++j) watch(worst[j], take(i + j * kLanes, kLanes));
  for (; end - i >= kLanes; i += kLanes) watch(worst[0], take(i, kLanes));
  if (i < end) watch(worst[0], take(i, int(end - i)));
  return reduce_max(max_u32(max_u32(worst[0], worst[1]), max_u32(worst[2], worst[3])));
}

void largest(const Largest& args, std::int64_t begin, std::int64_t end) {
  const float* const x = args.x;
  join_largest(args.out, largest_of(begin, end, [x](std::int64_t i, int count) GRADWIRE_LAMBDA {
    return load_ahead(x + i, count);
  }));
}

// The largest magnitude of residual + grad, which is formed again where it is needed: that moves fewer bytes than
// keeping it.

void largest_sum(const LargestSum& args, std::int64_t begin, std::int64_t end) {
  const float *const grad = args.grad, *const residual = args.residual;
  join_largest(args.out, largest_of(begin, end, [=](std::int64_t i, int count) GRADWIRE_LAMBDA {
    return load_ahead(residual + i, count) + load_ahead(grad + i, count);
  }));
}

// The nearest of 256 values for each of 16 elements; what ops.py defines, bit for bit.

struct Chosen {
  U32 code;
  F32 value;
};

constexpr int kDecades = 7;

template <Codebook kind>
constexpr float kLargest = kind == Codebook::linear ? 127.0f : kind == Codebook::dynamic ? 1.0f
                           : kind == Codebook::e4m3 ? 448.0f : 57344.0f;

template <Codebook kind>
constexpr std::uint8_t kZeroCode = kind == Codebook::dynamic ? 127 : 0;

// At 2^23 and a half the last bit of a float32 is 1, so adding rounds to an integer, which is in the lowest bits.
GRADWIRE_INLINE Chosen choose_linear(F32 y) {
  const F32 middle = set(0x1.8p23f), sum = y * set(127.0f) + middle;
  return {as_u32(sum), sum - middle};
}

// What a codebook needs in registers: of "dynamic" the 128 values above zero.
struct Book {
  const float* values;
  Table128 positive;
};

GRADWIRE_INLINE Book book_of(const float* values) { return {values, table128(values + 128)}; }

// `steps` codes away from zero, downwards where there is a sign.
GRADWIRE_INLINE F32 dynamic_value(const Book& book, U32 steps, U32 sign) {
  const U32 magnitude = as_u32(lookup(book.positive, steps - set_u32(1)));
  return as_f32(select(eq(steps, set_u32(0)), set_u32(0), magnitude | sign));
}

// The values go on with the lowest y of each decade, that of 1, and the codes of a decade per unit of y.
GRADWIRE_INLINE Chosen choose_dynamic(F32 y, const Book& book) {
  const float *const border = book.values + 256, *const slopes = border + kDecades + 1;
  const F32 magnitude = as_f32(abs_bits(y));
  F32 first = set(1.0f), slope = set(slopes[0]);
#pragma GCC unroll 6
  for (int d = 1; d < kDecades; ++d) {
    const Mask above = ge(magnitude, set(border[d]));
    first = select(above, set(float(1 << d)), first);
    slope = select(above, set(slopes[d]), slope);
  }
  const F32 place = magnitude * slope + first * set(8.0f / 9.0f);
  // Nothing is negative here, so the conversion to an integer is the floor.
  const U32 inside = to_i32(min(place, first + first - set(1.0f)));
  const U32 small = select(ge(magnitude, set(border[0])), inside, set_u32(0));
  const U32 steps = select(ge(y, set(border[kDecades])), set_u32(128), small);
  const U32 code = select(lt(y, set(0.0f)), set_u32(127) - steps, set_u32(127) + steps);
  return {code, dynamic_value(book, steps, as_u32(y) & set_u32(0x80000000))};
}

// To nearest even: a normal float8 by adding to its bits, a subnormal one by adding a float whose last bit is its own.
template <int kFraction, int kBias>
GRADWIRE_INLINE Chosen choose_float8(F32 scaled) {
  constexpr int kShift = 23 - kFraction;
  const U32 word = abs_bits(scaled), sign = as_u32(scaled) & set_u32(0x80000000);
  const U32 rounded = shr(word + set_u32((1u << (kShift - 1)) - 1) + (shr(word, kShift) & set_u32(1)), kShift);
  const F32 unit = as_f32(set_u32((127u + 24 - kBias - kFraction) << 23)), sum = as_f32(word) + unit;
  const Mask small = lt(as_f32(word), as_f32(set_u32((127u + 1 - kBias) << 23)));
  const U32 normal = rounded - set_u32((127u - kBias) << kFraction), subnormal = as_u32(sum) - as_u32(unit);
  const U32 value = select(small, as_u32(sum - unit), shl(rounded, kShift));
  return {select(small, subnormal, normal) | shr(sign, 24), as_f32(value | sign)};
}

// Bytes from outside may stand for what is not a number: in e4m3 the last one, in e5m2 the last exponent.
template <int kFraction, int kBias>
GRADWIRE_INLINE F32 float8_value(U32 code) {
  constexpr int kShift = 23 - kFraction;
  constexpr std::uint32_t kSpecial = kFraction == 3 ? 0x7f : 0x7c;
  const U32 magnitude = code & set_u32(0x7f), word = shl(magnitude, kShift);
  const U32 normal = word + set_u32((127u - kBias) << 23), one = set_u32((128u - kBias) << 23);
  const U32 subnormal = as_u32(as_f32(word | one) - as_f32(one));
  const U32 finite = select(ge(magnitude, set_u32(1u << kFraction)), normal, subnormal);
  const U32 value = select(ge(magnitude, set_u32(kSpecial)), word | set_u32(0x7f800000), finite);
  return as_f32(value | shl(code & set_u32(0x80), 24));
}

template <Codebook kind>
GRADWIRE_INLINE Chosen choose(F32 y, const Book& book) {
  if constexpr (kind == Codebook::linear) return choose_linear(y);
  if constexpr (kind == Codebook::dynamic) return choose_dynamic(y, book);
  if constexpr (kind == Codebook::e4m3) return choose_float8<3, 7>(y * set(kLargest<kind>));
  return choose_float8<2, 15>(y * set(kLargest<kind>));
}

template <Codebook kind>
GRADWIRE_INLINE F32 value_of(const std::uint8_t* codes, const Book& book, int count) {
  const U32 code = load_u8(codes, count);
  if constexpr (kind == Codebook::linear) return from_i32(sar(shl(code, 24), 24));
  if constexpr (kind == Codebook::e4m3) return float8_value<3, 7>(code);
  if constexpr (kind == Codebook::e5m2) return float8_value<2, 15>(code);
  const U32 steps = code - set_u32(127), sign = steps & set_u32(0x80000000);
  return dynamic_value(book, select(eq(sign, set_u32(0)), steps, set_u32(127) - code), sign);
}

// The values of 128 neighbouring codes: of "dynamic" those above zero, of others those without a sign.
template <Codebook kind>
GRADWIRE_INLINE void magnitudes(const float* values, float (&found)[128]) {
  for (int i = 0; i < 128; i += kLanes) {
    const U32 code = iota() + set_u32(std::uint32_t(i));
    if constexpr (kind == Codebook::dynamic) store(found + i, load(values + 128 + i));
    if constexpr (kind == Codebook::linear) store(found + i, from_i32(code));
    if constexpr (kind == Codebook::e4m3) store(found + i, float8_value<3, 7>(code));
    if constexpr (kind == Codebook::e5m2) store(found + i, float8_value<2, 15>(code));
  }
}

// A run of elements that share a scale, while they are in the L1 cache.

// What a range of a tensor without blocks is worked through in.
constexpr std::int64_t kEightbitTile = 2048;

GRADWIRE_INLINE bool eightbit_usable(float norm) { return norm > 0.0f && norm <= 0x1.fffffep127f; }

GRADWIRE_INLINE float eightbit_norm(U32 worst) {
  const std::uint32_t word = reduce_max(worst);
  float norm;
  std::memcpy(&norm, &word, sizeof norm);
  return norm < 0x1p-120f ? 0.0f : norm;
}

// Where a run begins in each array; without kKeep there is no residual.
struct EightbitRun {
  const float* x;
  float* residual;
  std::uint8_t* codes;
  std::int64_t count;
};

template <Codebook kind, bool kKeep>
GRADWIRE_INLINE void eightbit_step(const EightbitRun& run, std::int64_t i, F32 inverse, F32 backwards,
                                   const Book& book, int count) {
  // Where there is a residual the step that added it has asked for the memory ahead; else the arithmetic here has time.
  const F32 x = kKeep ? load(run.x + i, count) : load_ahead(run.x + i, count, block_ahead(run.count));
  const Chosen chosen = choose<kind>(x * inverse, book);
  store_u8(run.codes + i, chosen.code, count);
  if (kKeep) store(run.residual + i, x + backwards * chosen.value, count);
}

template <Codebook kind, bool kKeep>
static void eightbit_write(const EightbitRun& run, const float* values, float norm) {
  const Book book = book_of(values);
  const F32 inverse = set(1.0f / norm), backwards = set(-(norm / kLargest<kind>));
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; run.count - i >= kLanes; i += kLanes)
    eightbit_step<kind, kKeep>(run, i, inverse, backwards, book, kLanes);
  if (i < run.count) eightbit_step<kind, kKeep>(run, i, inverse, backwards, book, int(run.count - i));
}

// A block without a usable scale has codes of zero; what is kept of it is x, or NaN where the scale is not finite.
template <Codebook kind, bool kKeep>
static void eightbit_zeros(const EightbitRun& run, const float*, float norm) {
  std::memset(run.codes, kZeroCode<kind>, std::size_t(run.count));
  if (kKeep)
    for (std::int64_t i = 0; i < run.count; ++i) run.residual[i] = run.x[i] + -norm * 0.0f;
}

template <bool kKeep>
GRADWIRE_INLINE void eightbit_run(Codebook kind, const EightbitRun& run, const float* book, float norm) {
  using Function = void (*)(const EightbitRun&, const float*, float);
  constexpr Function write[] = {eightbit_write<Codebook::linear, kKeep>, eightbit_write<Codebook::dynamic, kKeep>,
                                eightbit_write<Codebook::e4m3, kKeep>, eightbit_write<Codebook::e5m2, kKeep>};
  constexpr Function zeros[] = {eightbit_zeros<Codebook::linear, kKeep>, eightbit_zeros<Codebook::dynamic, kKeep>,
                                eightbit_zeros<Codebook::e4m3, kKeep>, eightbit_zeros<Codebook::e5m2, kKeep>};
  (eightbit_usable(norm) ? write : zeros)[int(kind)](run, book, norm);
}

// 8-bit codes with a scale for each block, one pass over memory; a tensor of one scale has been measured before.

GRADWIRE_INLINE float eightbit_measure(const float* x, std::int64_t count) {
  U32 worst = set_u32(0);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) watch(worst, load(x + i, kLanes));
  if (i < count) watch(worst, load(x + i, int(count - i)));
  return eightbit_norm(worst);
}

void eightbit_encode(const EightbitEncode& args, std::int64_t begin, std::int64_t end) {
  const EightbitEncode k = args;
  const std::int64_t size = k.block ? k.block : kEightbitTile;
  for (std::int64_t i = begin; i < end; i += size) {
    const std::int64_t count = end - i < size ? end - i : size;
    const float norm = k.block ? eightbit_measure(k.x + i, count) : k.scales[0];
    if (k.block) k.scales[i / size] = norm;
    eightbit_run<false>(k.kind, {k.x + i, nullptr, k.codes + i, count}, k.book, norm);
  }
}

// 8-bit codes of residual + grad; the residual keeps what the codes do not say. One pass over memory, and one before
// it where the whole tensor shares a scale.

// Leaves the sum in the residual; the largest magnitude joins `worst`.
GRADWIRE_INLINE void eightbit_compensate(const EightbitEncodeFeedback& k, std::int64_t begin, std::int64_t end,
                                         U32& worst) {
  U32 unwatched = set_u32(0);  // `worst` sees the sum with or without a status.
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) {
    const F32 x = compensate(k, i, kLanes, unwatched);
    store(k.residual + i, x), watch(worst, x);
  }
  if (i == end) return;
  const F32 x = compensate(k, i, int(end - i), unwatched);
  store(k.residual + i, x, int(end - i)), watch(worst, x);
}

void eightbit_encode_feedback(const EightbitEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const EightbitEncodeFeedback k = args;
  const std::int64_t size = k.block ? k.block : kEightbitTile;
  for (std::int64_t i = begin; i < end; i += size) {
    const std::int64_t count = end - i < size ? end - i : size;
    U32 worst = set_u32(0);
    eightbit_compensate(k, i, i + count, worst);
    if (k.status) flag_nonfinite(k.status, worst);
    const float norm = k.block ? eightbit_norm(worst) : k.scales[0];
    if (k.block) k.scales[i / size] = norm;
    float* const x = k.residual + i;
    eightbit_run<true>(k.kind, {x, x, k.codes + i, count}, k.book, norm);
  }
}

// Adds the 8-bit payloads of all ranks, one after the other, with the sums in registers.

constexpr int kEightbitSums = 4;
constexpr int kEightbitRanks = 64;  // whose steps are kept at once
constexpr int kCodesAhead = 512;    // bytes that are asked for early: a CPU does not foresee where many streams go on

// What looks up the values of two vectors of codes, in the form that is fastest on the target.
template <Codebook kind>
struct EightbitPairs {
  Book book;
#if defined(GRADWIRE_HALVES_TABLE)
  HalvesTable halves;
#endif
};

template <Codebook kind>
GRADWIRE_INLINE EightbitPairs<kind> eightbit_pairs(const float* values) {
  EightbitPairs<kind> pairs;
  pairs.book = book_of(values);
#if defined(GRADWIRE_HALVES_TABLE)
  alignas(64) float found[128];
  magnitudes<kind>(values, found);
  pairs.halves = halves_table(found);
#endif
  return pairs;
}

template <Codebook kind>
GRADWIRE_INLINE void look_up(const EightbitPairs<kind>& pairs, const std::uint8_t* codes, F32& first, F32& second) {
#if defined(GRADWIRE_HALVES_TABLE)
  if constexpr (kind == Codebook::dynamic) return lookup_centred(pairs.halves, codes, first, second);
  if constexpr (kind == Codebook::e4m3 || kind == Codebook::e5m2)
    return lookup_signed(pairs.halves, codes, first, second);
#endif
  first = value_of<kind>(codes, pairs.book, kLanes), second = value_of<kind>(codes + kLanes, pairs.book, kLanes);
}

// A part of the tensor in which each of some ranks has one step.
struct EightbitPart {
  float* out;
  const std::uint8_t* codes;  // of the first rank
  std::int64_t stride, ranks;
  const float* steps;
  bool fresh;
};

template <Codebook kind>
GRADWIRE_INLINE void eightbit_add_vectors(const EightbitPart& part, std::int64_t i, const EightbitPairs<kind>& pairs) {
  F32 sums[kEightbitSums];
  for (int v = 0; v < kEightbitSums; ++v)
    sums[v] = part.fresh ? set(0.0f) : load_ahead(part.out + i + v * kLanes, kLanes);
  const std::uint8_t* codes = part.codes + i;
  for (std::int64_t w = 0; w < part.ranks; ++w, codes += part.stride) {
    const F32 step = set(part.steps[w]);
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(codes) + kCodesAhead));
    for (int v = 0; v < kEightbitSums; v += 2) {
      F32 first, second;
      look_up<kind>(pairs, codes + v * kLanes, first, second);
      sums[v] = sums[v] + step * first, sums[v + 1] = sums[v + 1] + step * second;
    }
  }
  for (int v = 0; v < kEightbitSums; ++v) store(part.out + i + v * kLanes, sums[v]);
}

template <Codebook kind>
GRADWIRE_INLINE void eightbit_add(const EightbitPart& part, const EightbitPairs<kind>& pairs, std::int64_t count) {
  std::int64_t i = 0;
  for (; count - i >= kEightbitSums * kLanes; i += kEightbitSums * kLanes) eightbit_add_vectors<kind>(part, i, pairs);
  for (; i < count; i += kLanes) {
    const int lanes = count - i < kLanes ? int(count - i) : kLanes;
    F32 sum = part.fresh ? set(0.0f) : load(part.out + i, lanes);
    for (std::int64_t w = 0; w < part.ranks; ++w)
      sum = sum + set(part.steps[w]) * value_of<kind>(part.codes + w * part.stride + i, pairs.book, lanes);
    store(part.out + i, sum, lanes);
  }
}

template <Codebook kind>
GRADWIRE_INLINE void eightbit_add_block(const EightbitAddDecoded& k, const EightbitPairs<kind>& pairs,
                                        std::int64_t block, std::int64_t begin, std::int64_t end) {
  float steps[kEightbitRanks];
  // Without a rank the range is written, too: it may be fresh.
  for (std::int64_t first = 0; first == 0 || first < k.codes.count; first += kEightbitRanks) {
    const std::int64_t left = k.codes.count - first, ranks = left < kEightbitRanks ? left : kEightbitRanks;
    for (std::int64_t w = 0; w < ranks; ++w) {
      float norm;
      const std::uint8_t* const scales = k.scales.data + (first + w) * k.scales.stride;
      std::memcpy(&norm, scales + block * std::int64_t(sizeof norm), sizeof norm);
      steps[w] = norm / kLargest<kind> * k.scale;
    }
    const std::uint8_t* const codes = k.codes.data + first * k.codes.stride + begin;
    const bool fresh = k.fresh && first == 0;
    eightbit_add<kind>({k.out + begin, codes, k.codes.stride, ranks, steps, fresh}, pairs, end - begin);
  }
}

// More ranks than have steps at once go over a part that stays in a cache.
constexpr std::int64_t kEightbitPart = 4096;

template <Codebook kind>
static void eightbit_add_range(const EightbitAddDecoded& k, std::int64_t begin, std::int64_t end) {
  const EightbitPairs<kind> pairs = eightbit_pairs<kind>(k.book);
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = k.block ? i / k.block : 0, after = k.block ? (block + 1) * k.block : end;
    const std::int64_t stop = after < end ? after : end, next = stop < i + kEightbitPart ? stop : i + kEightbitPart;
    eightbit_add_block<kind>(k, pairs, block, i, next);
    i = next;
  }
}

void eightbit_add_decoded(const EightbitAddDecoded& args, std::int64_t begin, std::int64_t end) {
  constexpr decltype(&eightbit_add_range<Codebook::linear>) add[] = {
      eightbit_add_range<Codebook::linear>, eightbit_add_range<Codebook::dynamic>, eightbit_add_range<Codebook::e4m3>,
      eightbit_add_range<Codebook::e5m2>};
  const EightbitAddDecoded k = args;
  add[int(k.kind)](k, begin, end);
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <cstring>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

Codebook codebook(int kind, Size block) {
  if (kind < 0 || kind > int(Codebook::e5m2)) throw std::invalid_argument("kind must be from 0 to 3");
  if (block < 0 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
  return Codebook(kind);
}

// The one scale of a whole tensor: the largest magnitude, or 0 where it is too small for its inverse.
template <class Args>
void measure_all(const Kernel<Args>& kernel, Args args, float* scale, Size n, int threads) {
  if (n == 0) return;
  std::uint32_t word = 0;
  args.out = &word;
  run(kernel, args, n, 16, threads);
  std::memcpy(scale, &word, sizeof word);
  if (*scale < 0x1p-120f) *scale = 0.0f;
}

void eightbit_encode(const float* x, float* scales, std::uint8_t* codes, int kind, Size block, const float* book,
                     Size n, int threads) {
  const EightbitEncode args = {{scales, codes, book, codebook(kind, block), block}, x};
  if (block) return run(kernels::eightbit_encode, args, n, block, threads);
  measure_all(kernels::largest, Largest{x, nullptr}, scales, n, threads);
  run_backwards(kernels::eightbit_encode, args, n, 16, threads);
}
GRADWIRE_OPERATION(eightbit_encode)

void eightbit_encode_feedback(float* grad, float* residual, float* scales, std::uint8_t* codes, int kind, Size block,
                              Maybe<std::int32_t> status, const float* book, Size n, int threads) {
  const EightbitEncodeFeedback args = {{grad, residual, status.data},
                                       {scales, codes, book, codebook(kind, block), block}};
  if (block) return run(kernels::eightbit_encode_feedback, args, n, block, threads);
  measure_all(kernels::largest_sum, LargestSum{grad, residual, nullptr}, scales, n, threads);
  run_backwards(kernels::eightbit_encode_feedback, args, n, 16, threads);
}
GRADWIRE_OPERATION(eightbit_encode_feedback)

void eightbit_add_decoded(Column scales, Column codes, float* out, int kind, Size block, double scale, bool fresh,
                          const float* book, Size ranks, Size n, int threads) {
  run(kernels::eightbit_add_decoded,
      {scales.rows(ranks), codes.rows(ranks), out, book, codebook(kind, block), block, float(scale), fresh}, n,
      block ? block : 16, threads);
}
GRADWIRE_OPERATION(eightbit_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(eightbit) {
  using namespace selftest;
  check(target, "largest", kernels::largest, [](Buffers& x, Size) {
    return Largest{x.a.data(), reinterpret_cast<std::uint32_t*>(x.status.data())};
  });
  check(target, "largest_sum", kernels::largest_sum, [](Buffers& x, Size) {
    return LargestSum{x.a.data(), x.b.data(), reinterpret_cast<std::uint32_t*>(x.status.data())};
  });
  std::vector<float> values(272);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(i) / 200 - 0.5f;
  const float* const book = values.data();
  for (const Size block : {0, 48})
    for (const Codebook kind : {Codebook::linear, Codebook::dynamic, Codebook::e4m3, Codebook::e5m2}) {
      const auto codes = [=](Buffers& x) { return Eightbit{x.c.data(), x.bytes.data(), book, kind, block}; };
      check(target, "eightbit_encode", kernels::eightbit_encode,
            [=](Buffers& x, Size) { return EightbitEncode{codes(x), x.a.data()}; });
      check(target, "eightbit_encode_feedback", kernels::eightbit_encode_feedback, [=](Buffers& x, Size) {
        leave_one_nan(x);
        return EightbitEncodeFeedback{{x.a.data(), x.b.data(), x.status.data()}, codes(x)};
      });
      for (const bool fresh : {false, true})
        check(target, "eightbit_add_decoded", kernels::eightbit_add_decoded, [=](Buffers& x, Size n) {
          return EightbitAddDecoded{x.rows(n), x.rows(n), x.a.data(), book, kind, block, 0.3f, fresh};
        });
    }
}
#endif

}  // namespace gradwire::operations

#endif
