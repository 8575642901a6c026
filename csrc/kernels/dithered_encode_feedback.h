// 2-bit codes of residual + grad where it reaches its part of a level; the residual keeps what the codes do not say.
#pragma once

#include "kernels/compensate.h"
#include "kernels/dither.h"
#include "kernels/twobit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void dithered_encode_feedback_step(const DitheredEncodeFeedback& k, std::int64_t begin, int count,
                                                   U32& worst) {
  const F32 t = set(k.threshold), level = set(k.level), minus_level = set(-k.level);
  TwobitBits bits;
  for (int part = 0; part * kLanes < count; ++part) {
    const int lanes = twobit_count(count, part);
    const std::int64_t i = begin + part * kLanes;
    const F32 x = compensate(k, i, lanes, worst), factor = dither(i);
    const Mask above = ge(x, level * factor), below = le(x, minus_level * factor);
    store(k.residual + i, select(above, x - t, select(below, x + t, x)), lanes);
    collect(bits, part, above, below, lanes);
  }
  store_twobit_codes(k.codes + begin / 4, bits, count);
}

GRADWIRE_WATCHING_KERNEL(dithered_encode_feedback, DitheredEncodeFeedback, kTwobitStep)

}  // namespace gradwire::GRADWIRE_TARGET
