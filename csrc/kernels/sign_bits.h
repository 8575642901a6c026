// Signs in bits: two vectors, 32 elements, at a time.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kSignStep = 2 * kLanes;

// The bits of a step, without those beyond its `count` elements.
GRADWIRE_INLINE std::uint32_t sign_word(Mask first, Mask second, int count) {
  const std::uint32_t valid = std::uint32_t((std::uint64_t{1} << count) - 1);
  return (bits(first) | std::uint32_t(bits(second)) << 16) & valid;
}

// The layout of signs: element i in byte i / 8, the first element in the lowest bit; 1 where it is zero or above.

GRADWIRE_INLINE std::size_t sign_bytes(int count) { return std::size_t((count + 7) / 8); }

GRADWIRE_INLINE Mask positive(F32 x) { return ge(x, set(0.0f)); }

GRADWIRE_INLINE void store_signs(std::uint8_t* codes, std::uint32_t word, int count) {
  std::memcpy(codes, &word, sign_bytes(count));
}

GRADWIRE_INLINE std::uint32_t load_signs(const std::uint8_t* codes, int count) {
  std::uint32_t word = 0;
  std::memcpy(&word, codes, sign_bytes(count));
  return word;
}

}  // namespace gradwire::GRADWIRE_TARGET
