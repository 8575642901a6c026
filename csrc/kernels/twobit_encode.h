// 2-bit codes of the elements at or beyond the threshold.
#pragma once

#include "kernels/twobit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void twobit_encode_step(const TwobitEncode& k, std::int64_t begin, int count) {
  const F32 fire = set(k.fire), minus_fire = set(-k.fire);
  TwobitBits bits;
  for (int part = 0; part * kLanes < count; ++part) {
    const int lanes = twobit_count(count, part);
    const F32 x = load_ahead(k.x + begin + part * kLanes, lanes);
    collect(bits, part, ge(x, fire), le(x, minus_fire), lanes);
  }
  store_twobit_codes(k.codes + begin / 4, bits, count);
}

GRADWIRE_RANGE_KERNEL(twobit_encode, TwobitEncode, kTwobitStep)

}  // namespace gradwire::GRADWIRE_TARGET
