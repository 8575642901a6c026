// 8-bit codes of residual + grad; the residual keeps what the codes do not say. One pass over memory, and one before
// it where the whole tensor shares a scale.
#pragma once

#include "kernels/compensate.h"
#include "kernels/eightbit_block.h"

namespace gradwire::GRADWIRE_TARGET {

// Leaves the sum in the residual; the largest magnitude joins `worst`.
GRADWIRE_INLINE void eightbit_compensate(const EightbitEncodeFeedback& k, std::int64_t begin, std::int64_t end,
                                         U32& worst) {
  U32 unwatched = set_u32(0);  // `worst` sees the sum with or without a status.
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) {
    const F32 x = compensate(k, i, kLanes, unwatched);
    store(k.residual + i, x), watch(worst, x);
  }
  if (i == end) return;
  const F32 x = compensate(k, i, int(end - i), unwatched);
  store(k.residual + i, x, int(end - i)), watch(worst, x);
}

void eightbit_encode_feedback(const EightbitEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const EightbitEncodeFeedback k = args;
  const std::int64_t size = k.block ? k.block : kEightbitTile;
  for (std::int64_t i = begin; i < end; i += size) {
    const std::int64_t count = end - i < size ? end - i : size;
    U32 worst = set_u32(0);
    eightbit_compensate(k, i, i + count, worst);
    if (k.status) flag_nonfinite(k.status, worst);
    const float norm = k.block ? eightbit_norm(worst) : k.scales[0];
    if (k.block) k.scales[i / size] = norm;
    float* const x = k.residual + i;
    eightbit_run<true>(k.kind, {x, x, k.codes + i, count}, k.book, norm);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
