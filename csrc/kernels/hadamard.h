// The Hadamard transform of a block in the L1 or L2 cache: pairs at distance n / 2 first, neighbours last.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kLongestRotation = 16384;

template <int kDistance>
GRADWIRE_INLINE F32 butterfly(F32 x) {
  const U32 distance = set_u32(kDistance);
  const U32 sign = select(eq(iota() & distance, distance), set_u32(0x80000000), set_u32(0));
  return as_f32(as_u32(x) ^ sign) + swap_lanes<kDistance>(x);
}

GRADWIRE_INLINE F32 hadamard16(F32 x) { return butterfly<1>(butterfly<2>(butterfly<4>(butterfly<8>(x)))); }

// Pairs at a distance of h, then of h / 2: two stages in one pass.
GRADWIRE_INLINE void two_stages(float* x, int h) {
  const int q = h / 2;
  for (int i = 0; i < q; i += kLanes) {
    const F32 a = load(x + i), b = load(x + i + q), c = load(x + i + h), d = load(x + i + h + q);
    const F32 ac = a + c, bd = b + d, a_c = a - c, b_d = b - d;
    store(x + i, ac + bd), store(x + i + q, ac - bd);
    store(x + i + h, a_c + b_d), store(x + i + h + q, a_c - b_d);
  }
}

// `n` is a power of two, at least 16.
static inline void hadamard(float* x, int n) {
  int h = n / 2;
  for (; h >= 2 * kLanes; h /= 4)
    for (int i = 0; i < n; i += 2 * h) two_stages(x + i, h);
  if (h == kLanes)
    for (int i = 0; i < n; i += 2 * kLanes) {
      const F32 a = load(x + i), b = load(x + i + kLanes);
      store(x + i, a + b), store(x + i + kLanes, a - b);
    }
  for (int i = 0; i < n; i += kLanes) store(x + i, hadamard16(load(x + i)));
}

}  // namespace gradwire::GRADWIRE_TARGET
