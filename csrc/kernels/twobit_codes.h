// The layout of 2-bit codes: element i in byte i / 4, the first in the highest bits; 11 above, 10 below, 00 neither.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// 16 words of codes at a time: the bits of 16 vectors are collected first and then put in their places together.
constexpr int kTwobitStep = kLanes * kLanes;

struct TwobitBits {
  std::uint16_t above[kLanes];
  std::uint16_t below[kLanes];
};

// How many of the `count` elements of a step are in its vector number `part`.
GRADWIRE_INLINE int twobit_count(int count, int part) {
  const int rest = count - part * kLanes;
  return count == kTwobitStep || rest > kLanes ? kLanes : rest;
}

GRADWIRE_INLINE void collect(TwobitBits& bits, int part, Mask above, Mask below, int count) {
  bits.above[part] = gradwire::GRADWIRE_TARGET::bits(above) & bits_of_count(count);
  bits.below[part] = gradwire::GRADWIRE_TARGET::bits(below) & bits_of_count(count);
}

// Bit i of a 16-bit value goes to bit 8 * (i / 4) + 6 - 2 * (i % 4) of 32 bits.
GRADWIRE_INLINE U32 spread_twobit(U32 x) {
  x = (x | shl(x, 8)) & set_u32(0x00ff00ff);
  x = (x | shl(x, 4)) & set_u32(0x0f0f0f0f);
  x = (shl(x, 4) | shr(x, 2)) & set_u32(0x33333333);
  return (shl(x, 2) | shr(x, 1)) & set_u32(0x55555555);
}

GRADWIRE_INLINE void store_twobit_codes(std::uint8_t* codes, const TwobitBits& bits, int count) {
  const U32 above = load_u16(bits.above), either = above | load_u16(bits.below);
  const U32 words = spread_twobit(above) | shl(spread_twobit(either), 1);
  if (count == kTwobitStep) return store_u32(codes, words);
  std::uint32_t lanes[kLanes];
  store_u32(lanes, words);
  std::memcpy(codes, lanes, sizeof(std::uint32_t) * ((count + kLanes - 1) / kLanes));
}

}  // namespace gradwire::GRADWIRE_TARGET
