// The factors of a level that differs between elements: 1 + the fractional part of i times the golden ratio.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// Those of the elements from i on.
GRADWIRE_INLINE F32 dither(std::int64_t i) {
  const U32 fraction = (set_u32(std::uint32_t(i)) + iota()) * set_u32(kDither);
  return as_f32(shr(fraction, 9) | set_u32(0x3f800000));
}

}  // namespace gradwire::GRADWIRE_TARGET
