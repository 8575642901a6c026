// Signs and mean magnitudes of residual + grad; the residual keeps what they do not say. One pass over memory.
#pragma once

#include "kernels/block_signs.h"

namespace gradwire::GRADWIRE_TARGET {

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

}  // namespace gradwire::GRADWIRE_TARGET
