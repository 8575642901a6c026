// The marked elements at their own places, 0 elsewhere.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void spread_marked_step(const SpreadMarked& k, std::int64_t i, int count) {
  std::uint16_t marks = 0;
  std::memcpy(&marks, k.bitmap + i / 8, count > 8 ? 2 : 1);
  const Mask marked = mask_of(marks);
  const F32 x = load_ahead(k.x + i, count);
  store(k.values + i, select(marked, x, set(0.0f)), count);
  if (k.left) store(k.left + i, select(marked, set(0.0f), x), count);
}

GRADWIRE_RANGE_KERNEL(spread_marked, SpreadMarked, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
