// 2-bit codes of residual + grad; the residual keeps what the codes do not say. One pass over memory.
#pragma once

#include "kernels/compensate.h"
#include "kernels/twobit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void twobit_encode_feedback_step(const TwobitEncodeFeedback& k, std::int64_t begin, int count,
                                                 U32& worst) {
  const F32 t = set(k.threshold), fire = set(k.fire), minus_fire = set(-k.fire);
  TwobitBits bits;
  for (int part = 0; part * kLanes < count; ++part) {
    const int lanes = twobit_count(count, part);
    const std::int64_t i = begin + part * kLanes;
    const F32 x = compensate(k, i, lanes, worst);
    const Mask above = ge(x, fire), below = le(x, minus_fire);
    store(k.residual + i, select(above, x - t, select(below, x + t, x)), lanes);
    collect(bits, part, above, below, lanes);
  }
  store_twobit_codes(k.codes + begin / 4, bits, count);
}

GRADWIRE_WATCHING_KERNEL(twobit_encode_feedback, TwobitEncodeFeedback, kTwobitStep)

}  // namespace gradwire::GRADWIRE_TARGET
