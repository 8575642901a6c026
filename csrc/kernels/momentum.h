// One step of the running mean of gradients: momentum = beta momentum + (1 - beta) grad.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// With a status the old momentum goes to grad, from where it can be restored if the new one is not finite.
GRADWIRE_INLINE F32 advance(const MomentumUpdate& k, std::int64_t i, int count, U32& worst) {
  const F32 old = load_ahead(k.momentum + i, count);
  const F32 now = old * set(k.beta) + load_ahead(k.grad + i, count) * set(k.rest);
  if (k.status) {
    store(k.grad + i, old, count);
    watch(worst, now);
  }
  store(k.momentum + i, now, count);
  return now;
}

}  // namespace gradwire::GRADWIRE_TARGET
