// The moments of residual + grad, which becomes the residual: the first of two passes with error feedback.
#pragma once

#include "kernels/compensate.h"
#include "kernels/moments.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void moments_feedback_step(const MomentsFeedback& k, std::int64_t i, int count, Segment& s,
                                           U32& worst) {
  const F32 x = compensate(k, i, count, worst);
  store(k.residual + i, x, count);
  add_to(s, x, count);
}

void moments_feedback(const MomentsFeedback& args, std::int64_t begin, std::int64_t end) {
  const MomentsFeedback k = args;
  U32 worst = set_u32(0);
  for (std::int64_t first = begin; first < end; first += kMomentSegment) {
    const std::int64_t after = end - first < kMomentSegment ? end : first + kMomentSegment;
    const float origin = k.centred ? k.residual[first] + k.grad[first] : 0.0f;
    Segment s = segment_at(origin);
    std::int64_t i = first;
    for (; after - i >= kLanes; i += kLanes) moments_feedback_step(k, i, kLanes, s, worst);
    if (i < after) moments_feedback_step(k, i, int(after - i), s, worst);
    write_moments(k.table + first / kMomentSegment * 4, s, origin, k.residual + first, after - first);
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

}  // namespace gradwire::GRADWIRE_TARGET
