// The codes of tagged elements, one after the other: 0, 1, 2 or 4 bytes each.
#pragma once

#include "kernels/inceptionn_tags.h"

namespace gradwire::GRADWIRE_TARGET {

// The nearest integer, for magnitudes below 2^22, at most `top`, and a sign above it.
GRADWIRE_INLINE U32 fixed_point(F32 magnitude, float unit, std::uint32_t top, U32 sign) {
  const U32 q = (as_u32(magnitude * set(unit) + set(0x1.8p23f)) & set_u32(0xffff)), most = set_u32(top);
  return select(gt(q, most), most, q) | (sign & set_u32(top + 1));
}

GRADWIRE_INLINE U32 inceptionn_words(const Classes& c, F32 x, float unit) {
  const U32 word = as_u32(x), sign = sar(word, 31);
  const F32 below = as_f32(select(c.copied, set_u32(0), abs_bits(x)));
  const U32 byte = fixed_point(below, unit, 127, sign), half = fixed_point(below, 0x1p15f, 32767, sign);
  return select(c.copied, word, select(c.longer, half, byte));
}

static void inceptionn_codes(const InceptionnCodes& args, std::int64_t begin, std::int64_t end) {
  const InceptionnCodes k = args;
  const float unit = float(1 << k.bound);
  std::uint8_t* p = k.codes;
  for (std::int64_t i = begin; i < end; i += kLanes) {
    const int count = end - i < kLanes ? int(end - i) : kLanes;
    const F32 x = load_ahead(k.x + i, count);
    const Classes c = classes_of(x, k.bound);
    std::uint32_t words[kLanes], sizes[kLanes];
    store_u32(words, inceptionn_words(c, x, unit));
    store_u32(sizes, sizes_of(c));
    for (int j = 0; j < count; ++j) {
      // Four bytes are written whatever is needed, except where they would reach into another thread's part.
      if (__builtin_expect(k.end - p >= 4, 1))
        std::memcpy(p, &words[j], 4);
      else
        std::memcpy(p, &words[j], sizes[j]);
      p += sizes[j];
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
