// A scaled copy in 16 bits.
#pragma once

#include "kernels/bfloat16.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void cast_encode_step(const CastEncode& k, std::int64_t i, int count) {
  const F32 x = load_ahead(k.x + i, count) * set(k.scale);
  if (k.bfloat)
    store_bf16(k.out + 2 * i, x, count);
  else
    store_f16(k.out + 2 * i, x, count);
}

GRADWIRE_RANGE_KERNEL(cast_encode, CastEncode, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
