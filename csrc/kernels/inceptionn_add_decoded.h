// Adds the elements of a tagged stream, or of one that holds them as they are.
#pragma once

#include "kernels/qsgd_codes.h"

namespace gradwire::GRADWIRE_TARGET {

// What a stream from outside lacks is read as zero.
GRADWIRE_INLINE std::uint32_t load_word(const std::uint8_t* p, const std::uint8_t* end) {
  std::uint32_t word = 0;
  if (end - p >= 4)
    std::memcpy(&word, p, 4);
  else if (end > p)
    std::memcpy(&word, p, std::size_t(end - p));
  return word;
}

GRADWIRE_INLINE F32 inceptionn_value(U32 tags, U32 words, float unit) {
  const Mask longer = eq(tags, set_u32(2));
  const U32 top = select(longer, set_u32(0x7fff), set_u32(0x7f));
  const F32 magnitude = from_i32(words & top) * select(longer, set(0x1p-15f), set(unit));
  const Mask negative = eq(words & (top + set_u32(1)), top + set_u32(1));
  const U32 fixed = as_u32(magnitude) | select(negative, set_u32(0x80000000), set_u32(0));
  return as_f32(select(eq(tags, set_u32(3)), words, select(eq(tags, set_u32(0)), set_u32(0), fixed)));
}

static void inceptionn_add_decoded(const InceptionnAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const InceptionnAddDecoded k = args;
  const float unit = 1.0f / float(1 << k.bound);
  const std::uint8_t* p = k.codes;
  for (std::int64_t i = begin; i < end; i += kLanes) {
    const int count = end - i < kLanes ? int(end - i) : kLanes;
    const U32 tags = k.tags ? load_levels<2>(k.tags + i / 4, count) & set_u32(3) : set_u32(3);
    std::uint32_t words[kLanes] = {}, sizes[kLanes];
    store_u32(sizes, shr(shl(set_u32(1), tags), 1));
    for (int j = 0; j < count; ++j) {
      words[j] = load_word(p, k.end);
      p += sizes[j];
    }
    const F32 value = inceptionn_value(tags, load_u32(words), unit);
    store(k.out + i, load_ahead(k.out + i, count) + value * set(k.scale), count);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
