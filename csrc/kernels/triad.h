// a = b + s * c: the yardstick of the benchmarks, two arrays read and one written.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void triad_range_step(const Triad& k, std::int64_t i, int count) {
  const F32 a = load_ahead(k.b + i, count) + set(k.s) * load_ahead(k.c + i, count);
  if (k.past_cache && count == kLanes)
    store_past_cache(k.a + i, a);
  else
    store(k.a + i, a, count);
}

GRADWIRE_RANGE_KERNEL(triad_range, Triad, kLanes)

void triad(const Triad& k, std::int64_t begin, std::int64_t end) {
  triad_range(k, begin, end);
  finish_stores();
}

}  // namespace gradwire::GRADWIRE_TARGET
