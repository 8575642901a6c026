// The first look of top-k at a value: is its magnitude inside the bracket in which the k-th largest is expected?
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// Without branches on the values: a percent of them at random places is what a CPU cannot predict.
GRADWIRE_INLINE void sort_out(const Bracket& k, F32 x, std::int64_t place, int count, Tally& t) {
  const U32 magnitude = abs_bits(x);
  Mask inside = first_of(gt(magnitude, set_u32(k.low)), count);
  const bool fits = t.inside + kLanes <= k.room;
  if (k.places) {
    if (fits) store_few(k.places + t.inside, set_u32(std::uint32_t(place)) + iota(), inside);
    if (fits) store_few(k.found + t.inside, as_u32(x), inside);
  } else {
    const Mask above = first_of(gt(magnitude, set_u32(k.high)), count);
    inside = and_not(inside, above);
    t.above += count_of(above);
    if (fits) store_few(k.found + t.inside, magnitude, inside);
  }
  t.inside += count_of(inside);
}

}  // namespace gradwire::GRADWIRE_TARGET
