// Adds the signs of all ranks, one after the other, with the sums in registers.
#pragma once

#include "kernels/sign_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void sign_add_decoded_step(const SignAddDecoded& k, std::int64_t i, int count) {
  const F32 low = set(-k.scale), high = set(k.scale);
  F32 first = load_ahead(k.out + i, first_of(count)), second = load_ahead(k.out + i + kLanes, second_of(count));
  const std::uint8_t* codes = k.codes.data + i / 8;
  for (std::int64_t w = 0; w < k.codes.count; ++w, codes += k.codes.stride) {
    const std::uint32_t word = load_signs(codes, count);
    first = first + first_level(word, low, high);
    second = second + second_level(word, low, high);
  }
  store(k.out + i, first, first_of(count));
  store(k.out + i + kLanes, second, second_of(count));
}

GRADWIRE_RANGE_KERNEL(sign_add_decoded, SignAddDecoded, kSignStep)

}  // namespace gradwire::GRADWIRE_TARGET
