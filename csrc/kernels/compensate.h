// The first step of error feedback: what is compressed is the gradient and what was not sent before.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// residual + grad. With a status the old residual goes to grad, from where it can be restored if the sum is not finite.
GRADWIRE_INLINE F32 compensate(const Feedback& k, std::int64_t i, int count, U32& worst) {
  const F32 residual = load_ahead(k.residual + i, count);
  const F32 sum = residual + load_ahead(k.grad + i, count);
  if (k.status) {
    store(k.grad + i, residual, count);
    watch(worst, sum);
  }
  return sum;
}

}  // namespace gradwire::GRADWIRE_TARGET
