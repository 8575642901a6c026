// Signs and, for each block, the mean magnitude. One pass over memory.
#pragma once

#include "kernels/block_signs.h"

namespace gradwire::GRADWIRE_TARGET {

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

}  // namespace gradwire::GRADWIRE_TARGET
