// What the codes of tagged elements stand for.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE U32 spread_tags(std::uint32_t packed) { return shr(set_u32(packed), shl(iota(), 1)) & set_u32(3); }

GRADWIRE_INLINE Table4 units_of(int bound) { return table4(0.0f, 0x1p-24f / float(1 << bound), 0x1p-31f, 0.0f); }

// Without a shift that depends on the class, the sign would have to be looked for in two places.
GRADWIRE_INLINE F32 inceptionn_value(U32 tags, U32 words, Table4 units) {
  const U32 high = shl(words, select(eq(tags, set_u32(2)), set_u32(16), set_u32(24)));
  const F32 magnitude = from_i32(high & set_u32(0x7fffffff)) * lookup(units, tags);
  const U32 fixed = as_u32(magnitude) | (high & set_u32(0x80000000));
  return as_f32(select(eq(tags, set_u32(3)), words, fixed));
}

}  // namespace gradwire::GRADWIRE_TARGET
