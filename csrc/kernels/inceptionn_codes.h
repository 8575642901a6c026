// The codes of tagged elements, one after the other: 0, 1, 2 or 4 bytes each.
#pragma once

#include "kernels/inceptionn_quads.h"
#include "kernels/inceptionn_tags.h"
#include "kernels/inceptionn_values.h"

namespace gradwire::GRADWIRE_TARGET {

// The float32, or its nearest multiple of the class's unit: for magnitudes below 2^22 that is in the lowest bits of
// the sum with 2^23 and a half. Of what is not sent, anything.
GRADWIRE_INLINE U32 inceptionn_words(const Classes& c, F32 x, float unit) {
  const U32 top = select(c.longer, set_u32(32767), set_u32(127));
  const F32 scaled = as_f32(abs_bits(x)) * select(c.longer, set(0x1p15f), set(unit));
  const U32 nearest = as_u32(scaled + set(0x1.8p23f)) & set_u32(0xffff);
  const U32 fixed = select(gt(nearest, top), top, nearest) | (sar(as_u32(x), 31) & (top + set_u32(1)));
  return select(c.copied, as_u32(x), fixed);
}

GRADWIRE_INLINE std::uint8_t* inceptionn_codes_step(const InceptionnCodes& k, std::uint8_t* p, float unit,
                                                    std::int64_t i, int count) {
  const F32 x = load(k.x + i, count);
  const U32 words = inceptionn_words(classes_of(x, k.bound), x, unit);
  const std::uint32_t packed = load_tags(k.tags + i / kQuad, count);
  if (k.left) {
    const U32 tags = spread_tags(packed), sent = select(eq(tags, set_u32(0)), set_u32(0), words);
    store(k.left + i, x + inceptionn_value(tags, sent, units_of(k.bound)) * set(-1.0f), count);
  }
  return store_quads(p, k.end, words, packed);
}

void inceptionn_codes(const InceptionnCodes& args, std::int64_t begin, std::int64_t end) {
  const InceptionnCodes k = args;
  const float unit = float(1 << k.bound);
  std::uint8_t* p = k.codes;
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) p = inceptionn_codes_step(k, p, unit, i, kLanes);
  if (i < end) inceptionn_codes_step(k, p, unit, i, int(end - i));
}

}  // namespace gradwire::GRADWIRE_TARGET
