// A copy of residual + grad, in 16 bits as a rule; the residual keeps what rounding took. One pass over memory.
#pragma once

#include "kernels/cast.h"
#include "kernels/compensate.h"

namespace gradwire::GRADWIRE_TARGET {

template <CastTo kTo>
GRADWIRE_INLINE void cast_encode_feedback_step(const CastEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  std::uint8_t* const out = k.out + kCastBytes<kTo> * i;
  const F32 x = compensate(k, i, count, worst);
  store_cast<kTo>(out, x, count);
  const F32 rest = x - (kTo == CastTo::float32 ? x : load_cast<kTo>(out, count));
  // Infinite also where x was finite and its code is not.
  watch(worst, rest);
  store(k.residual + i, rest, count);
}

template <CastTo kTo>
static void cast_encode_feedback_to(const CastEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const CastEncodeFeedback k = args;
  U32 worst = set_u32(0);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) cast_encode_feedback_step<kTo>(k, i, kLanes, worst);
  if (i < end) cast_encode_feedback_step<kTo>(k, i, int(end - i), worst);
  if (k.status) flag_nonfinite(k.status, worst);
}

GRADWIRE_CAST_KERNEL(cast_encode_feedback, CastEncodeFeedback)

}  // namespace gradwire::GRADWIRE_TARGET
