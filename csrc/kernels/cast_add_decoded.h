// Adds the scaled 16-bit payloads of all ranks, one after the other.
#pragma once

#include "kernels/bfloat16.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void cast_add_decoded_step(const CastAddDecoded& k, std::int64_t i, int count) {
  F32 sum = load_ahead(k.out + i, count);
  for (std::int64_t w = 0; w < k.payloads.count; ++w) {
    const std::uint8_t* p = k.payloads.data + w * k.payloads.stride + 2 * i;
    sum = sum + set(k.scale) * (k.bfloat ? load_bf16(p, count) : load_f16(p, count));
  }
  store(k.out + i, sum, count);
}

GRADWIRE_RANGE_KERNEL(cast_add_decoded, CastAddDecoded, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
