// Signs and two means of residual + grad; the residual keeps what they do not say. One pass over memory.
#pragma once

#include "kernels/two_means.h"

namespace gradwire::GRADWIRE_TARGET {

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

}  // namespace gradwire::GRADWIRE_TARGET
