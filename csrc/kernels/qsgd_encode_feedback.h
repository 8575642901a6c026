// QSGD codes of residual + grad; the residual keeps what the codes do not say. One pass over memory.
#pragma once

#include "kernels/compensate.h"
#include "kernels/qsgd_block.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void qsgd_compensate_step(const QsgdEncodeFeedback& k, std::int64_t i, int count, bool l2,
                                          Magnitude& m, U32& worst) {
  const F32 x = compensate(k, i, count, worst);
  store(k.residual + i, x, count);
  measure(m, x, l2);
}

GRADWIRE_INLINE void qsgd_compensate(const QsgdEncodeFeedback& k, std::int64_t begin, std::int64_t end, bool l2,
                                     Magnitude& m, U32& worst) {
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) qsgd_compensate_step(k, i, kLanes, l2, m, worst);
  if (i < end) qsgd_compensate_step(k, i, int(end - i), l2, m, worst);
}

void qsgd_encode_feedback(const QsgdEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const QsgdEncodeFeedback k = args;
  U32 worst = set_u32(0);
  RandomTiles random = {philox_stream(k.key, k.step), begin, {-1, -1}, {}};
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    Magnitude m = {set_u32(0), set(0.0f)};
    if (k.l2)
      qsgd_compensate(k, i, i + count, true, m, worst);
    else
      qsgd_compensate(k, i, i + count, false, m, worst);
    const float norm = norm_of(m, k.l2, k.residual + i, count);
    watch(worst, set(norm));
    write_block<true>(k, random, k.residual + i, k.residual + i, i, count, norm);
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

}  // namespace gradwire::GRADWIRE_TARGET
