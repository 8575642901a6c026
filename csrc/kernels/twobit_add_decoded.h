// Adds the 2-bit payloads of all ranks, one after the other, with the sums in registers.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kTwobitSums = 4;

// Element i of a 32-bit word of codes is 8 * (i / 4) + 6 - 2 * (i % 4) bits from its lowest end.
GRADWIRE_INLINE U32 twobit_shifts() {
  const U32 lane = iota();
  return shl(shr(lane, 2), 3) + set_u32(6) - shl(lane & set_u32(3), 1);
}

GRADWIRE_INLINE F32 twobit_values(const std::uint8_t* codes, const TwobitAddDecoded& k) {
  std::uint32_t word;
  std::memcpy(&word, codes, sizeof word);
  return lookup(table4(0.0f, 0.0f, -k.step, k.step), shr(set_u32(word), twobit_shifts()));
}

GRADWIRE_INLINE void twobit_add_vector(const TwobitAddDecoded& k, std::int64_t i, int count) {
  F32 sum = load(k.out + i, count);
  const std::uint8_t* codes = k.codes.data + i / 4;
  for (std::int64_t w = 0; w < k.codes.count; ++w) sum = sum + twobit_values(codes + w * k.codes.stride, k);
  store(k.out + i, sum, count);
}

GRADWIRE_INLINE void twobit_add_decoded_step(const TwobitAddDecoded& k, std::int64_t i, int count) {
  if (count < kTwobitSums * kLanes) {
    for (int j = 0; j < count; j += kLanes) twobit_add_vector(k, i + j, count - j < kLanes ? count - j : kLanes);
    return;
  }
  F32 sums[kTwobitSums];
  for (int j = 0; j < kTwobitSums; ++j) sums[j] = load_ahead(k.out + i + j * kLanes, kLanes);
  const std::uint8_t* codes = k.codes.data + i / 4;
  for (std::int64_t w = 0; w < k.codes.count; ++w, codes += k.codes.stride)
    for (int j = 0; j < kTwobitSums; ++j) sums[j] = sums[j] + twobit_values(codes + 4 * j, k);
  for (int j = 0; j < kTwobitSums; ++j) store(k.out + i + j * kLanes, sums[j]);
}

GRADWIRE_RANGE_KERNEL(twobit_add_decoded, TwobitAddDecoded, kTwobitSums * kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
