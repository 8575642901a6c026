// What both block-wise sign codes share: the second step of feedback, and the sum of payloads.
#pragma once

#include "kernels/block_sums.h"
#include "kernels/compensate.h"
#include "kernels/sign_codes.h"

namespace gradwire::GRADWIRE_TARGET {

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

GRADWIRE_INLINE void add_ranks_step(const SignRanks& ranks, float* out, std::int64_t i, int count) {
  F32 first = load_ahead(out + i, first_of(count)), second = load_ahead(out + i + kLanes, second_of(count));
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
        add_ranks_step(ranks, k.out, j, count);
      });
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
