// bfloat16: the upper half of a float32, rounded to nearest even.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE F32 load_bf16(const void* p, int count) { return as_f32(shl(load_u16(p, count), 16)); }

// Rounding up a NaN could make it infinity or zero: it is cut off and kept quiet.
GRADWIRE_INLINE void store_bf16(void* p, F32 x, int count) {
  const U32 word = as_u32(x), upper = shr(word, 16);
  const U32 rounded = shr(word + set_u32(0x7fff) + (upper & set_u32(1)), 16);
  const Mask nan = gt(abs_bits(x), set_u32(0x7f800000));
  store_u16(p, select(nan, upper | set_u32(0x40), rounded), count);
}

}  // namespace gradwire::GRADWIRE_TARGET
