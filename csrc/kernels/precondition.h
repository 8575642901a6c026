// grad = grad / scale; a scale of 0 counts as 1.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE F32 divisor(F32 scale) { return select(eq(abs_bits(scale), set_u32(0)), set(1.0f), scale); }

GRADWIRE_INLINE void precondition_step(const Precondition& k, std::int64_t i, int count, U32& worst) {
  const F32 x = load_ahead(k.grad + i, count) / divisor(load_ahead(k.scale + i, count));
  watch(worst, x);
  store(k.grad + i, x, count);
}

GRADWIRE_WATCHING_KERNEL(precondition, Precondition, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
