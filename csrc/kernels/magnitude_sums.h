// The sum of magnitudes of every block.
#pragma once

#include "kernels/block_sums.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE F32 magnitude_of(const MagnitudeSums& k, std::int64_t i, int count) {
  const F32 x = load_ahead(k.x + i, count);
  return magnitude(k.residual ? load_ahead(k.residual + i, count) + x : x);
}

void magnitude_sums(const MagnitudeSums& args, std::int64_t begin, std::int64_t end) {
  const MagnitudeSums k = args;
  for (std::int64_t i = begin; i < end; i += k.block) {
    LaneSums sums = no_sums();
    each_step(i, block_end(i, k.block, end), [&](std::int64_t j, int count) GRADWIRE_STEP {
      add_to(sums, magnitude_of(k, j, first_of(count)), magnitude_of(k, j + kLanes, second_of(count)));
    });
    k.sums[i / k.block] = total(sums);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
