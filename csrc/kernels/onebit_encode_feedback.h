// 1-bit codes of residual + grad; the residual keeps what the steps do not say. One pass over memory.
#pragma once

#include "kernels/compensate.h"
#include "kernels/onebit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE Mask onebit_feedback(const OnebitEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  const F32 x = compensate(k, i, count, worst), step = set(k.step);
  const Mask above = gt(x, set(k.threshold));
  const F32 rest = select(above, x - step, x + step);
  watch(worst, rest);
  store(k.residual + i, rest, count);
  return above;
}

GRADWIRE_INLINE void onebit_encode_feedback_step(const OnebitEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  const Mask first = onebit_feedback(k, i, first_of(count), worst);
  const Mask second = onebit_feedback(k, i + kLanes, second_of(count), worst);
  store_onebit_codes(k.codes + i / 8, first, second, count);
}

GRADWIRE_WATCHING_KERNEL(onebit_encode_feedback, OnebitEncodeFeedback, kOnebitStep)

}  // namespace gradwire::GRADWIRE_TARGET
