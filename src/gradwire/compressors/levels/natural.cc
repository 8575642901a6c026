// Powers of two on a CPU: the kernels, and the operations of ops.py, which says what the bytes are.
#include "family.h"

namespace gradwire {

struct Natural {
  std::uint8_t *bases, *codes;
  bool random;
  std::int64_t block;
  std::uint64_t key, step;
};

struct NaturalEncode : Natural {
  const float* x;
};
GRADWIRE_KERNEL(natural_encode, NaturalEncode)

struct NaturalEncodeFeedback : Feedback, Natural {};
GRADWIRE_KERNEL(natural_encode_feedback, NaturalEncodeFeedback)

struct NaturalAddDecoded {
  Rows bases, codes;
  float* out;
  std::int64_t block;
  float scale;
};
GRADWIRE_KERNEL(natural_add_decoded, NaturalAddDecoded)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/compensate.h"
#include "kernels/philox_words.h"

namespace gradwire::GRADWIRE_TARGET {

// One block while it is in the L1 cache.

constexpr std::uint32_t kNaturalNonfinite = 255;

// The biased exponent below a block's window, from its largest magnitude.
GRADWIRE_INLINE std::uint32_t natural_base(U32 worst) {
  const std::uint32_t exponent = reduce_max(worst) >> 23;
  return exponent == kNaturalNonfinite ? kNaturalNonfinite : exponent > 126 ? exponent - 126 : 0;
}

// Where a block begins in each array; without kKeep there is no residual.
struct NaturalRun {
  const float* x;
  float* residual;
  std::uint8_t* codes;
  std::int64_t ahead;
};

// The codes of 16 elements, as numbers from -128 to 127.
template <bool kKeep>
GRADWIRE_INLINE U32 natural_step(const NaturalRun& run, std::int64_t i, U32 base, U32 carry, int count) {
  // Where there is a residual the step that added it has asked for the memory ahead; else the arithmetic here has time.
  const F32 x = kKeep ? load(run.x + i, count) : load_ahead(run.x + i, count, run.ahead);
  const U32 rounded = min_u32(abs_bits(x) + carry, set_u32(0x7f7fffff)), exponent = shr(rounded, 23);
  if (kKeep) {
    const U32 power = select(gt(exponent, base), rounded & set_u32(0x7f800000), set_u32(0));
    store(run.residual + i, x - as_f32(power | (as_u32(x) & set_u32(0x80000000))), count);
  }
  // What is left of the exponent in the window, 0 below it; and the sign.
  return (max_u32(exponent, base) - base) | (sar(as_u32(x), 31) & set_u32(0xffffff80));
}

constexpr int kNaturalTile = kPhiloxWords * kPhiloxBatches;
constexpr int kNaturalSteps = kNaturalTile / kLanes;

// The random words of a tile of elements, and room for those of the next. Word i of the stream belongs to element i.
struct NaturalWords {
  PhiloxStream stream;
  std::uint64_t ready;  // the counter of the first word in `now`
  int now;
  alignas(64) std::uint32_t of[2][kNaturalTile];
};

GRADWIRE_INLINE NaturalWords natural_words(const Natural& k) { return {philox_stream(k.key, k.step), ~0ull, 0, {}}; }

GRADWIRE_INLINE U32 natural_random(const std::uint32_t* words) { return load_u32(words) & set_u32(0x7fffff); }

// A tile of elements, and meanwhile the random numbers of the next: one of the two alone would wait for its results.
template <bool kKeep>
GRADWIRE_INLINE void natural_tile(const NaturalRun& run, std::int64_t i, U32 base, NaturalWords& words) {
  const std::uint32_t* const random = words.of[words.now];
  words.ready += kNaturalTile / 4, words.now = 1 - words.now;
  if constexpr (!kPhiloxInterleaved) {
    for (int s = 0; s < kNaturalTile; s += kLanes)
      store_u8(run.codes + i + s, natural_step<kKeep>(run, i + s, base, natural_random(random + s), kLanes));
    return philox_tile(words.of[words.now], words.ready, words.stream);
  }
  PhiloxState<kPhiloxBatches> state;
  philox_start(state, words.stream, words.ready);
  U32 codes[4];
#pragma GCC unroll 8
  for (int round = 0; round < kPhiloxLater; ++round) {
    philox_later(state, words.stream, round);
#pragma GCC unroll 2
    for (int s = round * kNaturalSteps / kPhiloxLater; s < (round + 1) * kNaturalSteps / kPhiloxLater; ++s) {
      codes[s % 4] = natural_step<kKeep>(run, i + s * kLanes, base, natural_random(random + s * kLanes), kLanes);
      if (kNaturalSteps % 4 != 0)
        store_u8(run.codes + i + s * kLanes, codes[s % 4]);
      else if (s % 4 == 3)
        store_i8(run.codes + i + (s - 3) * kLanes, codes[0], codes[1], codes[2], codes[3]);
    }
  }
  philox_finish(state, words.stream, words.ready, words.of[words.now]);
}

// A block: the elements [first, first + count) of the tensor.
template <bool kKeep>
static void natural_write_random(const NaturalRun& run, NaturalWords& words, std::int64_t first, std::int64_t count,
                                 std::uint32_t exponent) {
  const U32 base = set_u32(exponent);
  const std::uint64_t counter = std::uint64_t(first) / 4;
  if (words.ready != counter) philox_tile(words.of[words.now], counter, words.stream);
  words.ready = counter;
  std::int64_t i = 0;
  for (; count - i >= kNaturalTile; i += kNaturalTile) natural_tile<kKeep>(run, i, base, words);
  const std::uint32_t* rest = words.of[words.now];
  for (; i < count; i += kLanes, rest += kLanes) {
    const int lanes = count - i < kLanes ? int(count - i) : kLanes;
    store_u8(run.codes + i, natural_step<kKeep>(run, i, base, natural_random(rest), lanes), lanes);
  }
}

template <bool kKeep>
static void natural_write_nearest(const NaturalRun& run, std::int64_t count, std::uint32_t exponent) {
  const U32 base = set_u32(exponent), half = set_u32(1u << 22);
  std::int64_t i = 0;
  for (; count - i >= 4 * kLanes; i += 4 * kLanes) {
    U32 codes[4];
    for (int v = 0; v < 4; ++v) codes[v] = natural_step<kKeep>(run, i + v * kLanes, base, half, kLanes);
    store_i8(run.codes + i, codes[0], codes[1], codes[2], codes[3]);
  }
  for (; i < count; i += kLanes) {
    const int lanes = count - i < kLanes ? int(count - i) : kLanes;
    store_u8(run.codes + i, natural_step<kKeep>(run, i, base, half, lanes), lanes);
  }
}

template <bool kKeep>
GRADWIRE_INLINE void natural_block(const Natural& k, NaturalWords& words, const NaturalRun& run, std::int64_t first,
                                   std::int64_t count, std::uint32_t base) {
  k.bases[first / k.block] = std::uint8_t(base);
  if (base == kNaturalNonfinite) {
    std::memset(run.codes, 0, std::size_t(count));
    if (kKeep)
      for (std::int64_t i = 0; i < count; ++i) run.residual[i] = __builtin_nanf("");
  } else if (k.random) {
    natural_write_random<kKeep>(run, words, first, count, base);
  } else {
    natural_write_nearest<kKeep>(run, count, base);
  }
}

// Powers of two, one pass over memory: each block is measured and rounded while it is in the L1 cache.

GRADWIRE_INLINE std::uint32_t natural_measure(const float* x, std::int64_t count) {
  U32 worst = set_u32(0);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) watch(worst, load(x + i, kLanes));
  if (i < count) watch(worst, load(x + i, int(count - i)));
  return natural_base(worst);
}

void natural_encode(const NaturalEncode& args, std::int64_t begin, std::int64_t end) {
  const NaturalEncode k = args;
  NaturalWords words = natural_words(k);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    const std::uint32_t base = natural_measure(k.x + i, count);
    natural_block<false>(k, words, {k.x + i, nullptr, k.codes + i, block_ahead(count)}, i, count, base);
  }
}

// Powers of two of residual + grad; the residual keeps what the codes do not say. One pass over memory.

// Leaves the sum in the residual; the largest magnitude joins `worst`.
GRADWIRE_INLINE void natural_compensate(const NaturalEncodeFeedback& k, std::int64_t begin, std::int64_t end,
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

void natural_encode_feedback(const NaturalEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const NaturalEncodeFeedback k = args;
  NaturalWords words = natural_words(k);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    U32 worst = set_u32(0);
    natural_compensate(k, i, i + count, worst);
    if (k.status) flag_nonfinite(k.status, worst);
    float* const x = k.residual + i;
    natural_block<true>(k, words, {x, x, k.codes + i, 0}, i, count, natural_base(worst));
  }
}

// Adds the powers of two of all ranks, one after the other, to a part of the sum that stays in the L1 cache.

constexpr std::int64_t kNaturalSum = 2048;

// Exponents beyond the last one, in bytes from outside, read as an infinity.
GRADWIRE_INLINE F32 natural_value(U32 code, U32 base) {
  const U32 place = code & set_u32(0x7f), exponent = place + base, last = set_u32(255);
  const U32 power = shl(select(gt(exponent, last), last, exponent), 23);
  return as_f32(select(eq(place, set_u32(0)), set_u32(0), power) | shl(code & set_u32(0x80), 24));
}

GRADWIRE_INLINE void natural_add(float* out, const std::uint8_t* codes, std::uint8_t exponent, float factor,
                                 std::int64_t count) {
  const U32 base = set_u32(exponent);
  const F32 scale = set(exponent == kNaturalNonfinite ? __builtin_nanf("") : factor);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes)
    store(out + i, load(out + i) + scale * natural_value(load_u8(codes + i), base));
  const int rest = int(count - i);
  if (rest > 0) store(out + i, load(out + i, rest) + scale * natural_value(load_u8(codes + i, rest), base), rest);
}

void natural_add_decoded(const NaturalAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const NaturalAddDecoded k = args;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = i / k.block, after = (block + 1) * k.block;
    const std::int64_t stop = after < end ? after : end, next = stop < i + kNaturalSum ? stop : i + kNaturalSum;
    for (std::int64_t w = 0; w < k.codes.count; ++w) {
      const std::uint8_t* const codes = k.codes.data + w * k.codes.stride + i;
      if (2 * next - i < end) prefetch_run(codes + (next - i), next - i);
      natural_add(k.out + i, codes, k.bases.data[w * k.bases.stride + block], k.scale, next - i);
    }
    i = next;
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

void check_block(Size block) {
  if (block < 16 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
}

Natural natural(std::uint8_t* bases, std::uint8_t* codes, int rounding, Size block, Size key, Size step) {
  check_block(block);
  return {bases, codes, rounding == 0, block, std::uint64_t(key), std::uint64_t(step)};
}

void natural_encode(const float* x, std::uint8_t* bases, std::uint8_t* codes, int rounding, Size block, Size key,
                    Size step, Size n, int threads) {
  run(kernels::natural_encode, {natural(bases, codes, rounding, block, key, step), x}, n, block, threads);
}
GRADWIRE_OPERATION(natural_encode)

void natural_encode_feedback(float* grad, float* residual, std::uint8_t* bases, std::uint8_t* codes, int rounding,
                             Size block, Size key, Size step, Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::natural_encode_feedback,
      {{grad, residual, status.data}, natural(bases, codes, rounding, block, key, step)}, n, block, threads);
}
GRADWIRE_OPERATION(natural_encode_feedback)

void natural_add_decoded(Column bases, Column codes, float* out, Size block, double scale, Size ranks, Size n,
                         int threads) {
  check_block(block);
  run(kernels::natural_add_decoded, {bases.rows(ranks), codes.rows(ranks), out, block, float(scale)}, n, block,
      threads);
}
GRADWIRE_OPERATION(natural_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(natural) {
  using namespace selftest;
  for (const bool random : {false, true}) {
    const auto natural = [=](Buffers& x, Size n) {
      return Natural{x.bytes.data() + Buffers::row_bytes(n), x.bytes.data(), random, 48, 0x9876543210, 3};
    };
    check(target, "natural_encode", kernels::natural_encode,
          [=](Buffers& x, Size n) { return NaturalEncode{natural(x, n), x.a.data()}; });
    check(target, "natural_encode_feedback", kernels::natural_encode_feedback, [=](Buffers& x, Size n) {
      return NaturalEncodeFeedback{{x.a.data(), x.b.data(), x.status.data()}, natural(x, n)};
    });
    check(target, "natural_add_decoded", kernels::natural_add_decoded, [=](Buffers& x, Size n) {
      return NaturalAddDecoded{x.rows(n), x.rows(n), x.a.data(), 48, 0.3f};
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
