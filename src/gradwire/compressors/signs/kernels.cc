// Signs and 1-bit codes on a CPU: the kernels, and the operations of ops.py, which says what the bytes are.
#include "family.h"

namespace gradwire {

struct SignEncode {
  const float* x;
  std::uint8_t* codes;
};
GRADWIRE_KERNEL(sign_encode, SignEncode)

struct SignEncodeFeedback : Feedback {
  std::uint8_t* codes;
};
GRADWIRE_KERNEL(sign_encode_feedback, SignEncodeFeedback)

struct SignAddDecoded {
  Rows codes;
  float* out;
  float scale;
  bool fresh;  // out counts as 0
};
GRADWIRE_KERNEL(sign_add_decoded, SignAddDecoded)

struct SignVote {
  float* mean;
  float tie;
};
GRADWIRE_KERNEL(sign_vote, SignVote)

// Signs by blocks: `levels` are one number for each block (a scale), or two (the mean below zero, then the other).
struct BlockSigns {
  float* levels;
  std::uint8_t* codes;
  std::int64_t block;
};

struct BlockSignEncode : BlockSigns {
  const float* x;
};
GRADWIRE_KERNEL(scaled_sign_encode, BlockSignEncode)
GRADWIRE_KERNEL(two_means_encode, BlockSignEncode)

struct BlockSignEncodeFeedback : Feedback, BlockSigns {};
GRADWIRE_KERNEL(scaled_sign_encode_feedback, BlockSignEncodeFeedback)
GRADWIRE_KERNEL(two_means_encode_feedback, BlockSignEncodeFeedback)

struct BlockSignAddDecoded {
  Rows levels, codes;
  float* out;
  std::int64_t block;
  float scale;
  bool fresh;  // out counts as 0
};
GRADWIRE_KERNEL(scaled_sign_add_decoded, BlockSignAddDecoded)
GRADWIRE_KERNEL(two_means_add_decoded, BlockSignAddDecoded)

struct OnebitEncode {
  const float* x;
  std::uint8_t* codes;
  float threshold;
};
GRADWIRE_KERNEL(onebit_encode, OnebitEncode)

struct OnebitEncodeFeedback : Feedback {
  std::uint8_t* codes;
  float threshold, step;
};
GRADWIRE_KERNEL(onebit_encode_feedback, OnebitEncodeFeedback)

// `steps` without data: every rank steps by one.
struct OnebitAddDecoded {
  Rows codes, steps;
  float* out;
  float scale;
  bool fresh;  // out counts as 0
};
GRADWIRE_KERNEL(onebit_add_decoded, OnebitAddDecoded)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/block_sums.h"
#include "kernels/compensate.h"
#include "kernels/sign_bits.h"

namespace gradwire::GRADWIRE_TARGET {

// The two vectors that a step's signs stand for.
GRADWIRE_INLINE F32 first_level(std::uint32_t word, F32 low, F32 high) {
  return select(mask_of(std::uint16_t(word)), high, low);
}
GRADWIRE_INLINE F32 second_level(std::uint32_t word, F32 low, F32 high) {
  return select(mask_of(std::uint16_t(word >> 16)), high, low);
}

// The sign of every element in a bit.
GRADWIRE_INLINE void sign_encode_step(const SignEncode& k, std::int64_t i, int count) {
  const Mask first = positive(load_ahead(k.x + i, first_of(count)));
  const Mask second = positive(load_ahead(k.x + i + kLanes, second_of(count)));
  store_signs(k.codes + i / 8, sign_word(first, second, count), count);
}

GRADWIRE_RANGE_KERNEL(sign_encode, SignEncode, kSignStep)

// The signs of residual + grad; the residual keeps what steps of one do not say. One pass over memory.
GRADWIRE_INLINE Mask sign_feedback(const SignEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  const F32 x = compensate(k, i, count, worst), one = set(1.0f);
  const Mask above = positive(x);
  store(k.residual + i, select(above, x - one, x + one), count);
  return above;
}

GRADWIRE_INLINE void sign_encode_feedback_step(const SignEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  const Mask first = sign_feedback(k, i, first_of(count), worst);
  const Mask second = sign_feedback(k, i + kLanes, second_of(count), worst);
  store_signs(k.codes + i / 8, sign_word(first, second, count), count);
}

GRADWIRE_WATCHING_KERNEL(sign_encode_feedback, SignEncodeFeedback, kSignStep)

// Adds the signs of all ranks, one after the other, with the sums in registers.
GRADWIRE_INLINE void sign_add_decoded_step(const SignAddDecoded& k, std::int64_t i, int count) {
  const F32 low = set(-k.scale), high = set(k.scale);
  F32 first = set(0.0f), second = set(0.0f);
  if (!k.fresh)
    first = load_ahead(k.out + i, first_of(count)), second = load_ahead(k.out + i + kLanes, second_of(count));
  const std::uint8_t* codes = k.codes.data + i / 8;
  for (std::int64_t w = 0; w < k.codes.count; ++w, codes += k.codes.stride) {
    const std::uint32_t word = load_signs(codes, count);
    first = first + first_level(word, low, high);
    second = second + second_level(word, low, high);
  }
  store(k.out + i, first, first_of(count));
  store(k.out + i + kLanes, second, second_of(count));
}

GRADWIRE_RANGE_KERNEL(sign_add_decoded, SignAddDecoded, kSignStep)

// Below this a mean is a tie whose terms did not cancel in the last bits: a majority of one in 2048 ranks is 2^-11.
constexpr float kTie = 0x1p-12f;

// The sign of a mean of signs, in its place.
GRADWIRE_INLINE void sign_vote_step(const SignVote& k, std::int64_t i, int count) {
  const F32 mean = load_ahead(k.mean + i, count), one = set(1.0f), minus_one = set(-1.0f);
  const F32 decided = select(gt(mean, set(0.0f)), one, minus_one);
  const F32 tie = select(le(as_f32(abs_bits(mean)), set(kTie)), set(k.tie), decided);
  const Mask number = le(as_f32(abs_bits(mean)), set(INFINITY));
  store(k.mean + i, select(number, tie, mean), count);
}

GRADWIRE_RANGE_KERNEL(sign_vote, SignVote, kLanes)

// Signs by blocks: what both codes share is the second step of feedback, and the sum of payloads.

struct Levels {
  float low, high;
};

GRADWIRE_INLINE F32 without_level(F32 x, F32 low, F32 high) { return x - select(positive(x), high, low); }

// While the block is in the cache: the residual, which holds x, keeps what the level does not say.
GRADWIRE_INLINE void keep_rest(float* residual, std::int64_t begin, std::int64_t end, Levels levels) {
  const F32 low = set(levels.low), high = set(levels.high);
  each_step(begin, end, [&](std::int64_t i, int count) GRADWIRE_STEP {
    float* const first = residual + i;
    store(first, without_level(load(first, first_of(count)), low, high), first_of(count));
    store(first + kLanes, without_level(load(first + kLanes, second_of(count)), low, high), second_of(count));
  });
}

// residual + grad, which is kept in the residual for now.
GRADWIRE_INLINE F32 compensate_in_place(const Feedback& k, std::int64_t i, int count, U32& worst) {
  const F32 x = compensate(k, i, count, worst);
  store(k.residual + i, x, count);
  return x;
}

// Ranks whose levels of a block are held at once; more are added in several turns, while the block is in the cache.
constexpr int kLevelRanks = 8;

struct SignRanks {
  const std::uint8_t* codes;
  std::int64_t stride;
  int count;
  Levels levels[kLevelRanks];
};

GRADWIRE_INLINE void add_ranks_step(const SignRanks& ranks, float* out, bool fresh, std::int64_t i, int count) {
  F32 first = set(0.0f), second = set(0.0f);
  if (!fresh) first = load_ahead(out + i, first_of(count)), second = load_ahead(out + i + kLanes, second_of(count));
  const std::uint8_t* codes = ranks.codes + i / 8;
  for (int w = 0; w < ranks.count; ++w, codes += ranks.stride) {
    const std::uint32_t word = load_signs(codes, count);
    const F32 low = set(ranks.levels[w].low), high = set(ranks.levels[w].high);
    first = first + first_level(word, low, high);
    second = second + second_level(word, low, high);
  }
  store(out + i, first, first_of(count));
  store(out + i + kLanes, second, second_of(count));
}

// `levels_of(row, block)` gives the levels of a block from the row of a rank.
template <class LevelsOf>
GRADWIRE_INLINE void add_block_signs(const BlockSignAddDecoded& k, std::int64_t begin, std::int64_t end,
                                     const LevelsOf& levels_of) {
  for (std::int64_t i = begin; i < end; i += k.block) {
    for (std::int64_t w = 0; w < k.codes.count; w += kLevelRanks) {
      const std::int64_t left = k.codes.count - w;
      SignRanks ranks = {k.codes.data + w * k.codes.stride, k.codes.stride, int(left < kLevelRanks ? left : kLevelRanks),
                         {}};
      for (int j = 0; j < ranks.count; ++j)
        ranks.levels[j] = levels_of(k.levels.data + (w + j) * k.levels.stride, i / k.block);
      each_step(i, block_end(i, k.block, end), [&](std::int64_t j, int count) GRADWIRE_STEP {
        add_ranks_step(ranks, k.out, k.fresh && w == 0, j, count);
      });
    }
  }
}

// Signs and, for each block, the mean magnitude. One pass over memory.
void scaled_sign_encode(const BlockSignEncode& args, std::int64_t begin, std::int64_t end) {
  const BlockSignEncode k = args;
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t stop = block_end(i, k.block, end);
    LaneSums sums = no_sums();
    each_step(i, stop, [&](std::int64_t j, int count) GRADWIRE_STEP {
      const F32 first = load_ahead(k.x + j, first_of(count)), second = load_ahead(k.x + j + kLanes, second_of(count));
      store_signs(k.codes + j / 8, sign_word(positive(first), positive(second), count), count);
      add_to(sums, magnitude(first), magnitude(second));
    });
    k.levels[i / k.block] = total(sums) / float(stop - i);
  }
}

// Signs and mean magnitudes of residual + grad; the residual keeps what they do not say. One pass over memory.
void scaled_sign_encode_feedback(const BlockSignEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const BlockSignEncodeFeedback k = args;
  U32 worst = set_u32(0);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t stop = block_end(i, k.block, end);
    LaneSums sums = no_sums();
    each_step(i, stop, [&](std::int64_t j, int count) GRADWIRE_STEP {
      const F32 first = compensate_in_place(k, j, first_of(count), worst);
      const F32 second = compensate_in_place(k, j + kLanes, second_of(count), worst);
      store_signs(k.codes + j / 8, sign_word(positive(first), positive(second), count), count);
      add_to(sums, magnitude(first), magnitude(second));
    });
    const float scale = total(sums) / float(stop - i);
    k.levels[i / k.block] = scale;
    watch(worst, set(scale));
    keep_rest(k.residual, i, stop, {-scale, scale});
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

// Adds the signs of all ranks, each with the rank's own scale of the block. One pass over memory.
void scaled_sign_add_decoded(const BlockSignAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const BlockSignAddDecoded k = args;
  add_block_signs(k, begin, end, [&](const std::uint8_t* row, std::int64_t block) {
    float level;
    std::memcpy(&level, row + block * std::int64_t(sizeof level), sizeof level);
    return Levels{-(k.scale * level), k.scale * level};
  });
}

// The sums of a block on each side of zero, and the means that follow.
struct Sides {
  LaneSums low, high;
  std::int64_t above;
};

GRADWIRE_INLINE Sides no_sides() { return {no_sums(), no_sums(), 0}; }

// Adds a step to the sums; returns its signs.
GRADWIRE_INLINE std::uint32_t add_sides(Sides& sides, F32 first, F32 second, int count) {
  const Mask p = positive(first), q = positive(second);
  const F32 zero = set(0.0f);
  add_to(sides.high, select(p, first, zero), select(q, second, zero));
  add_to(sides.low, select(p, zero, first), select(q, zero, second));
  const std::uint32_t word = sign_word(p, q, count);
  sides.above += __builtin_popcount(word);
  return word;
}

GRADWIRE_INLINE float mean_of(const LaneSums& sums, std::int64_t count) {
  return count == 0 ? 0.0f : total(sums) / float(count);
}

GRADWIRE_INLINE Levels means_of(const Sides& sides, std::int64_t count) {
  return {mean_of(sides.low, count - sides.above), mean_of(sides.high, sides.above)};
}

GRADWIRE_INLINE void store_means(float* means, std::int64_t block, Levels levels) {
  means[2 * block] = levels.low;
  means[2 * block + 1] = levels.high;
}

// Signs and, for each block, the mean of the elements on each side of zero. One pass over memory.
void two_means_encode(const BlockSignEncode& args, std::int64_t begin, std::int64_t end) {
  const BlockSignEncode k = args;
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t stop = block_end(i, k.block, end);
    Sides sides = no_sides();
    each_step(i, stop, [&](std::int64_t j, int count) GRADWIRE_STEP {
      const F32 first = load_ahead(k.x + j, first_of(count)), second = load_ahead(k.x + j + kLanes, second_of(count));
      store_signs(k.codes + j / 8, add_sides(sides, first, second, count), count);
    });
    store_means(k.levels, i / k.block, means_of(sides, stop - i));
  }
}

// Signs and two means of residual + grad; the residual keeps what they do not say. One pass over memory.
void two_means_encode_feedback(const BlockSignEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const BlockSignEncodeFeedback k = args;
  U32 worst = set_u32(0);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t stop = block_end(i, k.block, end);
    Sides sides = no_sides();
    each_step(i, stop, [&](std::int64_t j, int count) GRADWIRE_STEP {
      const F32 first = compensate_in_place(k, j, first_of(count), worst);
      const F32 second = compensate_in_place(k, j + kLanes, second_of(count), worst);
      store_signs(k.codes + j / 8, add_sides(sides, first, second, count), count);
    });
    const Levels means = means_of(sides, stop - i);
    store_means(k.levels, i / k.block, means);
    watch(worst, set(means.low)), watch(worst, set(means.high));
    keep_rest(k.residual, i, stop, means);
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

// Adds the signs of all ranks, each with the rank's own two means of the block. One pass over memory.
void two_means_add_decoded(const BlockSignAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const BlockSignAddDecoded k = args;
  add_block_signs(k, begin, end, [&](const std::uint8_t* row, std::int64_t block) {
    float means[2];
    std::memcpy(means, row + block * std::int64_t(sizeof means), sizeof means);
    return Levels{k.scale * means[0], k.scale * means[1]};
  });
}

// The layout of 1-bit codes: element i in byte i / 8, the first element in the highest bit; whole 32-bit words.

GRADWIRE_INLINE std::uint32_t reverse_in_bytes(std::uint32_t x) {
  x = (x & 0x55555555) << 1 | (x >> 1 & 0x55555555);
  x = (x & 0x33333333) << 2 | (x >> 2 & 0x33333333);
  return (x & 0x0f0f0f0f) << 4 | (x >> 4 & 0x0f0f0f0f);
}

GRADWIRE_INLINE void store_onebit_codes(std::uint8_t* codes, Mask first, Mask second, int count) {
  const std::uint32_t word = reverse_in_bytes(sign_word(first, second, count));
  std::memcpy(codes, &word, sizeof word);
}

// 1-bit codes of the elements above the threshold.
GRADWIRE_INLINE void onebit_encode_step(const OnebitEncode& k, std::int64_t i, int count) {
  const F32 t = set(k.threshold);
  const Mask first = gt(load_ahead(k.x + i, first_of(count)), t);
  const Mask second = gt(load_ahead(k.x + i + kLanes, second_of(count)), t);
  store_onebit_codes(k.codes + i / 8, first, second, count);
}

GRADWIRE_RANGE_KERNEL(onebit_encode, OnebitEncode, kSignStep)

// 1-bit codes of residual + grad; the residual keeps what the steps do not say. One pass over memory.
GRADWIRE_INLINE Mask onebit_feedback(const OnebitEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  const F32 x = compensate(k, i, count, worst), step = set(k.step);
  const Mask above = gt(x, set(k.threshold));
  const F32 rest = select(above, x - step, x + step);
  watch(worst, rest);
  store(k.residual + i, rest, count);
  return above;
}

GRADWIRE_INLINE void onebit_encode_feedback_step(const OnebitEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  const Mask first = onebit_feedback(k, i, first_of(count), worst);
  const Mask second = onebit_feedback(k, i + kLanes, second_of(count), worst);
  store_onebit_codes(k.codes + i / 8, first, second, count);
}

GRADWIRE_WATCHING_KERNEL(onebit_encode_feedback, OnebitEncodeFeedback, kSignStep)

// How far left the bit of each lane of a step's first vector is from the sign, in a word loaded with its first byte
// lowest; in the second vector it is 16 places less.
GRADWIRE_INLINE U32 onebit_shifts() {
  const U32 lane = iota();
  return (lane & set_u32(7)) + set_u32(24) - shl(shr(lane, 3), 3);
}

GRADWIRE_INLINE F32 onebit_values(U32 word, U32 shifts, float scale) {
  return as_f32(as_u32(set(-scale)) ^ (shl(word, shifts) & set_u32(0x80000000)));
}

// Adds the 1-bit payloads of all ranks, one after the other, with the sums in registers.
GRADWIRE_INLINE void onebit_add_decoded_step(const OnebitAddDecoded& k, std::int64_t i, int count) {
  const U32 shifts = onebit_shifts(), shifts_second = shifts - set_u32(16);
  F32 first = set(0.0f), second = set(0.0f);
  if (!k.fresh)
    first = load_ahead(k.out + i, first_of(count)), second = load_ahead(k.out + i + kLanes, second_of(count));
  const std::uint8_t* codes = k.codes.data + i / 8;
  for (std::int64_t w = 0; w < k.codes.count; ++w, codes += k.codes.stride) {
    std::uint32_t word;
    std::memcpy(&word, codes, sizeof word);
    const float scale = k.scale * factor_of(k.steps, w);
    first = first + onebit_values(set_u32(word), shifts, scale);
    second = second + onebit_values(set_u32(word), shifts_second, scale);
  }
  store(k.out + i, first, first_of(count));
  store(k.out + i + kLanes, second, second_of(count));
}

GRADWIRE_RANGE_KERNEL(onebit_add_decoded, OnebitAddDecoded, kSignStep)

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include "magnitudes.h"
#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

void sign_encode(const float* x, std::uint8_t* codes, Size n, int threads) {
  run(kernels::sign_encode, {x, codes}, n, 32, threads);
}
GRADWIRE_OPERATION(sign_encode)

void sign_encode_feedback(float* grad, float* residual, std::uint8_t* codes, Maybe<std::int32_t> status, Size n,
                          int threads) {
  run(kernels::sign_encode_feedback, {{grad, residual, status.data}, codes}, n, 32, threads);
}
GRADWIRE_OPERATION(sign_encode_feedback)

void sign_add_decoded(Column codes, float* out, double scale, bool fresh, Size ranks, Size n, int threads) {
  run(kernels::sign_add_decoded, {codes.rows(ranks), out, float(scale), fresh}, n, 32, threads);
}
GRADWIRE_OPERATION(sign_add_decoded)

void sign_vote(float* mean, double tie, Size n, int threads) {
  run(kernels::sign_vote, {mean, float(tie)}, n, 16, threads);
}
GRADWIRE_OPERATION(sign_vote)

void mean_magnitude(const float* x, float* mean, Maybe<const float> residual, Size n, int threads) {
  *mean = mean_of_magnitudes(x, residual.data, n, threads);
}
GRADWIRE_OPERATION(mean_magnitude)

Size whole(Size block) {
  if (block < 32 || block % 32 != 0) throw std::invalid_argument("block must be a multiple of 32");
  return block;
}

void scaled_sign_encode(const float* x, float* scales, std::uint8_t* codes, Size block, Size n, int threads) {
  run(kernels::scaled_sign_encode, {{scales, codes, whole(block)}, x}, n, block, threads);
}
GRADWIRE_OPERATION(scaled_sign_encode)

void scaled_sign_encode_feedback(float* grad, float* residual, float* scales, std::uint8_t* codes, Size block,
                                 Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::scaled_sign_encode_feedback, {{grad, residual, status.data}, {scales, codes, whole(block)}}, n, block,
      threads);
}
GRADWIRE_OPERATION(scaled_sign_encode_feedback)

void scaled_sign_add_decoded(Column scales, Column codes, float* out, Size block, double scale, bool fresh, Size ranks,
                             Size n, int threads) {
  run(kernels::scaled_sign_add_decoded,
      {scales.rows(ranks), codes.rows(ranks), out, whole(block), float(scale), fresh}, n, block, threads);
}
GRADWIRE_OPERATION(scaled_sign_add_decoded)

void two_means_encode(const float* x, float* means, std::uint8_t* codes, Size block, Size n, int threads) {
  run(kernels::two_means_encode, {{means, codes, whole(block)}, x}, n, block, threads);
}
GRADWIRE_OPERATION(two_means_encode)

void two_means_encode_feedback(float* grad, float* residual, float* means, std::uint8_t* codes, Size block,
                               Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::two_means_encode_feedback, {{grad, residual, status.data}, {means, codes, whole(block)}}, n, block,
      threads);
}
GRADWIRE_OPERATION(two_means_encode_feedback)

void two_means_add_decoded(Column means, Column codes, float* out, Size block, double scale, bool fresh, Size ranks,
                           Size n, int threads) {
  run(kernels::two_means_add_decoded,
      {means.rows(ranks), codes.rows(ranks), out, whole(block), float(scale), fresh}, n, block, threads);
}
GRADWIRE_OPERATION(two_means_add_decoded)

void onebit_encode(const float* x, std::uint8_t* codes, double threshold, Maybe<const float> step, Size n,
                   int threads) {
  run(kernels::onebit_encode, {x, codes, float(threshold) * value_or(step, 1.0f)}, n, 32, threads);
}
GRADWIRE_OPERATION(onebit_encode)

void onebit_encode_feedback(float* grad, float* residual, std::uint8_t* codes, double threshold,
                            Maybe<std::int32_t> status, Maybe<const float> step, Size n, int threads) {
  const float size = value_or(step, 1.0f);
  run(kernels::onebit_encode_feedback, {{grad, residual, status.data}, codes, float(threshold) * size, size}, n, 32,
      threads);
}
GRADWIRE_OPERATION(onebit_encode_feedback)

void onebit_add_decoded(Column codes, float* out, double scale, Column steps, bool fresh, Size ranks, Size n,
                        int threads) {
  run(kernels::onebit_add_decoded, {codes.rows(ranks), steps.rows(ranks), out, float(scale), fresh}, n, 32, threads);
}
GRADWIRE_OPERATION(onebit_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(signs) {
  using namespace selftest;
  const auto feedback = [](Buffers& x, bool watched) {
    return Feedback{x.a.data(), x.b.data(), watched ? x.status.data() : nullptr};
  };
  const auto blocks = [](Buffers& x) { return BlockSigns{x.c.data(), x.bytes.data(), 64}; };
  const auto plain = [=](Buffers& x, Size) { return BlockSignEncode{blocks(x), x.a.data()}; };
  check(target, "sign_encode", kernels::sign_encode,
        [](Buffers& x, Size) { return SignEncode{x.a.data(), x.bytes.data()}; });
  check(target, "sign_vote", kernels::sign_vote, [](Buffers& x, Size) { return SignVote{x.a.data(), 1.0f}; });
  check(target, "scaled_sign_encode", kernels::scaled_sign_encode, plain);
  check(target, "two_means_encode", kernels::two_means_encode, plain);
  for (const bool fresh : {false, true}) {
    const auto added = [=](Buffers& x, Size n) {
      return BlockSignAddDecoded{x.rows(n), x.rows(n), x.a.data(), 64, 0.3f, fresh};
    };
    check(target, "scaled_sign_add_decoded", kernels::scaled_sign_add_decoded, added);
    check(target, "two_means_add_decoded", kernels::two_means_add_decoded, added);
    check(target, "sign_add_decoded", kernels::sign_add_decoded,
          [=](Buffers& x, Size n) { return SignAddDecoded{x.rows(n), x.a.data(), 0.3f, fresh}; });
  }
  check(target, "onebit_encode", kernels::onebit_encode,
        [](Buffers& x, Size) { return OnebitEncode{x.a.data(), x.bytes.data(), 0.5f}; });
  for (const bool own : {false, true})
    check(target, "onebit_add_decoded", kernels::onebit_add_decoded, [=](Buffers& x, Size n) {
      return OnebitAddDecoded{x.rows(n), own ? x.rows(n) : Rows{nullptr, kRanks, 0}, x.a.data(), 0.3f, own};
    });
  for (const bool watched : {false, true}) {
    const auto kept = [=](Buffers& x, Size) { return BlockSignEncodeFeedback{feedback(x, watched), blocks(x)}; };
    check(target, "scaled_sign_encode_feedback", kernels::scaled_sign_encode_feedback, kept);
    check(target, "two_means_encode_feedback", kernels::two_means_encode_feedback, kept);
    check(target, "sign_encode_feedback", kernels::sign_encode_feedback,
          [=](Buffers& x, Size) { return SignEncodeFeedback{feedback(x, watched), x.bytes.data()}; });
    check(target, "onebit_encode_feedback", kernels::onebit_encode_feedback, [=](Buffers& x, Size) {
      return OnebitEncodeFeedback{feedback(x, watched), x.bytes.data(), 0.5f, watched ? 0.7f : 1.0f};
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
