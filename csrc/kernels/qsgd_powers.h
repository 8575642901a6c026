// What a level stands for: itself, or a power of two, level t being 2^(t - top) of the norm.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// The unit that levels are multiples of.
template <bool kPowers>
GRADWIRE_INLINE float step_of(float norm, float top) {
  return kPowers ? norm : norm / top;
}

// The level of a share of the norm, rounded at random between the two powers beside it; below the least of them
// between that and zero. `x` gives the sign.
GRADWIRE_INLINE U32 power_of(F32 share, U32 top, F32 x, U32 u) {
  const F32 scaled = share * as_f32(shl(top + set_u32(126), 23));
  const U32 word = as_u32(scaled), one = set_u32(0x3f800000);
  const Mask large = ge(word, one);
  const F32 fraction = select(large, as_f32((word & set_u32(0x7fffff)) | one) - set(1.0f), scaled);
  const F32 rounded = mul_add_exact(from_i32(u) + set(0.5f), set(0x1p-16f), fraction);
  const U32 below = select(large, shr(word, 23) - set_u32(126), set_u32(0));
  const U32 level = below + select(ge(rounded, set(1.0f)), set_u32(1), set_u32(0));
  const U32 sign = sar(as_u32(x), 31);
  return (select(gt(level, top), top, level) ^ sign) - sign;
}

template <bool kPowers>
GRADWIRE_INLINE F32 value_of(U32 level, U32 top) {
  if constexpr (!kPowers) return from_i32(level);
  const U32 sign = sar(level, 31), magnitude = (level ^ sign) - sign;
  const U32 word = shl(magnitude + set_u32(127) - top, 23) | (sign & set_u32(0x80000000));
  return as_f32(select(eq(magnitude, set_u32(0)), set_u32(0), word));
}

}  // namespace gradwire::GRADWIRE_TARGET
