// The 4-bit codes of the marked elements: how far the rounded exponent is below the largest, and the sign.
#pragma once

#include "kernels/bit_words.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kCodeBlock = 1024;

// The exponent of |x| rounded to a power of two; 255 only for what is not finite.
GRADWIRE_INLINE U32 rounded_exponent(F32 x) {
  const U32 size = abs_bits(x), rounded = shr(size + set_u32(0x400000), 23), most = set_u32(254);
  return select(ge(size, set_u32(0x7f800000)), set_u32(255), select(gt(rounded, most), most, rounded));
}

GRADWIRE_INLINE U32 exponent_code(const ExponentCodes& k, F32 x) {
  const U32 sign = select(lt(x, set(0.0f)), set_u32(8), set_u32(0));
  return (set_u32(std::uint32_t(k.top)) - rounded_exponent(x)) | sign;
}

// Of at most kCodeBlock elements; returns how many codes there are.
GRADWIRE_INLINE int exponent_block(const ExponentCodes& k, std::int64_t i, std::int64_t stop, std::uint16_t* codes) {
  int found = 0;
  for (; i < stop; i += kLanes) {
    const int count = stop - i < kLanes ? int(stop - i) : kLanes;
    std::uint16_t marks = 0;
    std::memcpy(&marks, k.bitmap + i / 8, count > 8 ? 2 : 1);
    const F32 x = count == kLanes ? load_ahead(k.x + i, kLanes) : load(k.x + i, count);
    found += store_front_u16(codes + found, exponent_code(k, x), mask_of(marks));
  }
  return found;
}

GRADWIRE_INLINE void put_nibbles(BitSink& sink, std::uint16_t* codes, int count) {
  for (int i = count; i < count + 8; ++i) codes[i] = 0;
  for (int i = 0; i < count; i += 8) {
    std::uint32_t word = 0;
    for (int j = 0; j < 8; ++j) word |= std::uint32_t(codes[i + j] & 15) << 4 * j;
    put_bits(sink, word, count - i < 8 ? 4 * (count - i) : 32);
  }
}

static void exponent_codes(const ExponentCodes& args, std::int64_t begin, std::int64_t end) {
  const ExponentCodes k = args;
  std::uint16_t codes[kCodeBlock + kLanes];
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment, segment = first / kMarkSegment;
    BitSink sink = bit_sink(k.codes, 4 * k.starts[segment], k.edges + segment);
    for (std::int64_t i = first; i < stop; i += kCodeBlock)
      put_nibbles(sink, codes, exponent_block(k, i, stop - i < kCodeBlock ? stop : i + kCodeBlock, codes));
    finish_bits(sink);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
