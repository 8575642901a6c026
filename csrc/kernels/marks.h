// The bits that mark elements, 16 at a time.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// Writes the bits of 16 elements of which `count` exist; returns how many are set.
GRADWIRE_INLINE int put_marks(std::uint8_t* bitmap, std::int64_t i, std::uint16_t marks, int count) {
  std::memcpy(bitmap + i / 8, &marks, count > 8 ? 2 : 1);
  return __builtin_popcount(marks);
}

GRADWIRE_INLINE std::uint16_t bits_below(Mask m, int count) {
  return std::uint16_t(bits(m) & bits_of_count(count));
}

// The same without the lanes that `m` selects.
GRADWIRE_INLINE std::uint16_t bits_outside(Mask m, int count) {
  return std::uint16_t(~bits(m) & bits_of_count(count));
}

}  // namespace gradwire::GRADWIRE_TARGET
