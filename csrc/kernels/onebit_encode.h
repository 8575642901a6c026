// 1-bit codes of the elements above the threshold.
#pragma once

#include "kernels/onebit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void onebit_encode_step(const OnebitEncode& k, std::int64_t i, int count) {
  const F32 t = set(k.threshold);
  const Mask first = gt(load_ahead(k.x + i, first_of(count)), t);
  const Mask second = gt(load_ahead(k.x + i + kLanes, second_of(count)), t);
  store_onebit_codes(k.codes + i / 8, first, second, count);
}

GRADWIRE_RANGE_KERNEL(onebit_encode, OnebitEncode, kOnebitStep)

}  // namespace gradwire::GRADWIRE_TARGET
