// 2-bit codes of the elements that reach their part of a level.
#pragma once

#include "kernels/dither.h"
#include "kernels/twobit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void dithered_encode_step(const DitheredEncode& k, std::int64_t begin, int count) {
  const F32 level = set(k.level), minus_level = set(-k.level);
  TwobitBits bits;
  for (int part = 0; part * kLanes < count; ++part) {
    const int lanes = twobit_count(count, part);
    const std::int64_t i = begin + part * kLanes;
    const F32 x = load_ahead(k.x + i, lanes), factor = dither(i);
    collect(bits, part, ge(x, level * factor), le(x, minus_level * factor), lanes);
  }
  store_twobit_codes(k.codes + begin / 4, bits, count);
}

GRADWIRE_RANGE_KERNEL(dithered_encode, DitheredEncode, kTwobitStep)

}  // namespace gradwire::GRADWIRE_TARGET
