// The sums of a block on each side of zero, and the means that follow.
#pragma once

#include "kernels/block_signs.h"

namespace gradwire::GRADWIRE_TARGET {

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

}  // namespace gradwire::GRADWIRE_TARGET
