// The sign of every element in a bit.
#pragma once

#include "kernels/sign_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void sign_encode_step(const SignEncode& k, std::int64_t i, int count) {
  const Mask first = positive(load_ahead(k.x + i, first_of(count)));
  const Mask second = positive(load_ahead(k.x + i + kLanes, second_of(count)));
  store_signs(k.codes + i / 8, sign_word(first, second, count), count);
}

GRADWIRE_RANGE_KERNEL(sign_encode, SignEncode, kSignStep)

}  // namespace gradwire::GRADWIRE_TARGET
