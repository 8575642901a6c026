// The signs of residual + grad; the residual keeps what steps of one do not say. One pass over memory.
#pragma once

#include "kernels/compensate.h"
#include "kernels/sign_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE Mask sign_feedback(const SignEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  const F32 x = compensate(k, i, count, worst), one = set(1.0f);
  const Mask above = positive(x);
  store(k.residual + i, select(above, x - one, x + one), count);
  return above;
}

GRADWIRE_INLINE void sign_encode_feedback_step(const SignEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  const Mask first = sign_feedback(k, i, first_of(count), worst);
  const Mask second = sign_feedback(k, i + kLanes, second_of(count), worst);
  store_signs(k.codes + i / 8, sign_word(first, second, count), count);
}

GRADWIRE_WATCHING_KERNEL(sign_encode_feedback, SignEncodeFeedback, kSignStep)

}  // namespace gradwire::GRADWIRE_TARGET
