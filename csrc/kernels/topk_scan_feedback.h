// The first pass of top-k with feedback: residual = residual + grad, sorted out as in topk_scan.h.
#pragma once

#include "kernels/compensate.h"
#include "kernels/topk_bracket.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void scan_feedback_step(const TopkScanFeedback& k, std::int64_t begin, std::int64_t i, int count,
                                        Tally& t, U32& worst) {
  const F32 x = compensate(k, i, count, worst);
  store(k.residual + i, x, count);
  sort_out(k, x, i - begin, count, t);
}

void topk_scan_feedback(const TopkScanFeedback& args, std::int64_t begin, std::int64_t end) {
  const TopkScanFeedback k = args;
  Tally t = {0, 0};
  U32 worst = set_u32(0);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) scan_feedback_step(k, begin, i, kLanes, t, worst);
  if (i < end) scan_feedback_step(k, begin, i, int(end - i), t, worst);
  *k.tally = t;
  if (k.status) flag_nonfinite(k.status, worst);
}

}  // namespace gradwire::GRADWIRE_TARGET
