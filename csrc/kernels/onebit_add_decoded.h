// Adds the 1-bit payloads of all ranks, one after the other, with the sums in registers.
#pragma once

#include "kernels/onebit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

// How far left the bit of each lane of a step's first vector is from the sign, in a word loaded with its first byte
// lowest; in the second vector it is 16 places less.
GRADWIRE_INLINE U32 onebit_shifts() {
  const U32 lane = iota();
  return (lane & set_u32(7)) + set_u32(24) - shl(shr(lane, 3), 3);
}

GRADWIRE_INLINE F32 onebit_values(U32 word, U32 shifts, float scale) {
  return as_f32(as_u32(set(-scale)) ^ (shl(word, shifts) & set_u32(0x80000000)));
}

GRADWIRE_INLINE float onebit_scale(const OnebitAddDecoded& k, std::int64_t rank) {
  if (k.steps.data == nullptr) return k.scale;
  float step;
  std::memcpy(&step, k.steps.data + rank * k.steps.stride, sizeof step);
  return k.scale * step;
}

GRADWIRE_INLINE void onebit_add_decoded_step(const OnebitAddDecoded& k, std::int64_t i, int count) {
  const U32 shifts = onebit_shifts(), shifts_second = shifts - set_u32(16);
  F32 first = load_ahead(k.out + i, first_of(count)), second = load_ahead(k.out + i + kLanes, second_of(count));
  const std::uint8_t* codes = k.codes.data + i / 8;
  for (std::int64_t w = 0; w < k.codes.count; ++w, codes += k.codes.stride) {
    std::uint32_t word;
    std::memcpy(&word, codes, sizeof word);
    const float scale = onebit_scale(k, w);
    first = first + onebit_values(set_u32(word), shifts, scale);
    second = second + onebit_values(set_u32(word), shifts_second, scale);
  }
  store(k.out + i, first, first_of(count));
  store(k.out + i + kLanes, second, second_of(count));
}

GRADWIRE_RANGE_KERNEL(onebit_add_decoded, OnebitAddDecoded, kOnebitStep)

}  // namespace gradwire::GRADWIRE_TARGET
