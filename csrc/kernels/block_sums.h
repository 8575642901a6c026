// Sums over a block, added in one order on every target: in 32 lanes, then the lanes as a tree.
#pragma once

#include "simd/simd.h"

// On the lambda of a loop: inlined twice, so that the count of all steps but the last is a constant.
#define GRADWIRE_STEP __attribute__((always_inline))

namespace gradwire::GRADWIRE_TARGET {

// How many of `count` elements are in the first and in the second vector of a step of 32.
GRADWIRE_INLINE int first_of(int count) { return count < kLanes ? count : kLanes; }
GRADWIRE_INLINE int second_of(int count) { return count - first_of(count); }

struct LaneSums {
  F32 first, second;
};

GRADWIRE_INLINE LaneSums no_sums() { return {set(0.0f), set(0.0f)}; }

GRADWIRE_INLINE void add_to(LaneSums& sums, F32 first, F32 second) {
  sums.first = sums.first + first;
  sums.second = sums.second + second;
}

GRADWIRE_INLINE float total(const LaneSums& sums) {
  float lanes[kLanes];
  store(lanes, sums.first + sums.second);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  return lanes[0];
}

GRADWIRE_INLINE F32 magnitude(F32 x) { return as_f32(abs_bits(x)); }

// Calls step(first element, number of elements) for every 32 elements of [begin, end).
template <class Step>
GRADWIRE_INLINE void each_step(std::int64_t begin, std::int64_t end, const Step& step) {
  std::int64_t i = begin;
  for (; end - i >= 2 * kLanes; i += 2 * kLanes) step(i, 2 * kLanes);
  if (i < end) step(i, int(end - i));
}

GRADWIRE_INLINE std::int64_t block_end(std::int64_t begin, std::int64_t block, std::int64_t end) {
  return end - begin < block ? end : begin + block;
}

}  // namespace gradwire::GRADWIRE_TARGET
