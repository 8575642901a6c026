// Sets the status where an element is infinite or not a number.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void nonfinite_step(const Nonfinite& k, std::int64_t i, int count, U32& worst) {
  watch(worst, load_ahead(k.x + i, count));
}

GRADWIRE_WATCHING_KERNEL(nonfinite, Nonfinite, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
