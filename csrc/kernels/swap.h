// Exchanges two arrays.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void swap_step(const Swap& k, std::int64_t i, int count) {
  const F32 a = load_ahead(k.a + i, count), b = load_ahead(k.b + i, count);
  store(k.a + i, b, count);
  store(k.b + i, a, count);
}

GRADWIRE_RANGE_KERNEL(swap, Swap, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
