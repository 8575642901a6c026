// Powers of two in which squares of very small or very large elements neither vanish nor overflow.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE float power_of_two(int exponent) {
  const std::uint32_t word = std::uint32_t(exponent + 127) << 23;
  float power;
  std::memcpy(&power, &word, sizeof power);
  return power;
}

// The exponent of a magnitude, given by its bits, as far as its negative is one of a normal number, too.
GRADWIRE_INLINE int exponent_of(std::uint32_t magnitude) {
  const int exponent = int(magnitude >> 23) - 127;
  return exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
}

}  // namespace gradwire::GRADWIRE_TARGET
