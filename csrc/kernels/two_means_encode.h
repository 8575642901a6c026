// Signs and, for each block, the mean of the elements on each side of zero. One pass over memory.
#pragma once

#include "kernels/two_means.h"

namespace gradwire::GRADWIRE_TARGET {

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

}  // namespace gradwire::GRADWIRE_TARGET
