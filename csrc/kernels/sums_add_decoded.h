// Adds what sums of levels stand for.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void sums_add_decoded_step(const SumsAddDecoded& k, std::int64_t i, int count) {
  const F32 level = from_i32(load_u8(k.sums + i, count) - set_u32(std::uint32_t(k.bias)));
  store(k.out + i, load_ahead(k.out + i, count) + set(k.step) * level, count);
}

GRADWIRE_RANGE_KERNEL(sums_add_decoded, SumsAddDecoded, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
