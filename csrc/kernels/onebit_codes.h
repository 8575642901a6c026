// The layout of 1-bit codes: element i in byte i / 8, the first element in the highest bit.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kOnebitStep = 2 * kLanes;

// How many of `count` elements are in the first and in the second vector of a step.
GRADWIRE_INLINE int first_of(int count) { return count < kLanes ? count : kLanes; }
GRADWIRE_INLINE int second_of(int count) { return count - first_of(count); }

GRADWIRE_INLINE std::uint32_t reverse_in_bytes(std::uint32_t x) {
  x = (x & 0x55555555) << 1 | (x >> 1 & 0x55555555);
  x = (x & 0x33333333) << 2 | (x >> 2 & 0x33333333);
  return (x & 0x0f0f0f0f) << 4 | (x >> 4 & 0x0f0f0f0f);
}

GRADWIRE_INLINE void store_onebit_codes(std::uint8_t* codes, Mask first, Mask second, int count) {
  const std::uint32_t valid = std::uint32_t((std::uint64_t{1} << count) - 1);
  const std::uint32_t word = reverse_in_bytes((bits(first) | std::uint32_t(bits(second)) << 16) & valid);
  std::memcpy(codes, &word, sizeof word);
}

}  // namespace gradwire::GRADWIRE_TARGET
