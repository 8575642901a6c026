// 3LC codes of residual + grad; the residual keeps what they do not say. One pass over memory.
#pragma once

#include "kernels/compensate.h"
#include "kernels/three_lc_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void three_lc_compensate(const ThreeLcEncodeFeedback& k, std::int64_t i, int count, U32& largest,
                                         U32& worst) {
  const F32 x = compensate(k, i, count, worst);
  store(k.residual + i, x, count);
  watch(largest, x);
}

void three_lc_encode_feedback(const ThreeLcEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const ThreeLcEncodeFeedback k = args;
  U32 worst = set_u32(0);
  for (std::int64_t first = begin; first < end; first += k.block) {
    const std::int64_t count = end - first < k.block ? end - first : k.block;
    U32 largest = set_u32(0);
    std::int64_t i = 0;
    for (; count - i >= kLanes; i += kLanes) three_lc_compensate(k, first + i, kLanes, largest, worst);
    if (i < count) three_lc_compensate(k, first + i, int(count - i), largest, worst);
    const float scale = scale_of(largest, k.sparsity);
    watch(worst, set(scale));
    write_ternary_block<true>(k, k.residual + first, k.residual + first, first, count, scale);
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

}  // namespace gradwire::GRADWIRE_TARGET
