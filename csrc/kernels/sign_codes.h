// The layout of signs: element i in byte i / 8, the first element in the lowest bit; 1 where it is zero or above.
#pragma once

#include "kernels/onebit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kSignStep = 2 * kLanes;

GRADWIRE_INLINE std::size_t sign_bytes(int count) { return std::size_t((count + 7) / 8); }

// The signs of a step, without the bits beyond its `count` elements.
GRADWIRE_INLINE std::uint32_t sign_word(Mask first, Mask second, int count) {
  const std::uint32_t valid = std::uint32_t((std::uint64_t{1} << count) - 1);
  return (bits(first) | std::uint32_t(bits(second)) << 16) & valid;
}

GRADWIRE_INLINE Mask positive(F32 x) { return ge(x, set(0.0f)); }

GRADWIRE_INLINE void store_signs(std::uint8_t* codes, std::uint32_t word, int count) {
  std::memcpy(codes, &word, sign_bytes(count));
}

GRADWIRE_INLINE std::uint32_t load_signs(const std::uint8_t* codes, int count) {
  std::uint32_t word = 0;
  std::memcpy(&word, codes, sign_bytes(count));
  return word;
}

// The two vectors that a step's signs stand for.
GRADWIRE_INLINE F32 first_level(std::uint32_t word, F32 low, F32 high) {
  return select(mask_of(std::uint16_t(word)), high, low);
}
GRADWIRE_INLINE F32 second_level(std::uint32_t word, F32 low, F32 high) {
  return select(mask_of(std::uint16_t(word >> 16)), high, low);
}

}  // namespace gradwire::GRADWIRE_TARGET
