// The 4-bit codes of the marked elements: how far the rounded exponent is below the largest, and the sign.
#pragma once

#include "kernels/nibbles.h"

namespace gradwire::GRADWIRE_TARGET {

// The exponent of |x| rounded to a power of two; 255 only for what is not finite.
GRADWIRE_INLINE U32 rounded_exponent(F32 x) {
  const U32 size = abs_bits(x), rounded = shr(size + set_u32(0x400000), 23), most = set_u32(254);
  return select(ge(size, set_u32(0x7f800000)), set_u32(255), select(gt(rounded, most), most, rounded));
}

GRADWIRE_INLINE U32 exponent_code(const ExponentCodes& k, F32 x) {
  const U32 sign = select(lt(x, set(0.0f)), set_u32(8), set_u32(0));
  return (set_u32(std::uint32_t(k.top)) - rounded_exponent(x)) | sign;
}

GRADWIRE_INLINE void exponent_step(const ExponentCodes& k, BitSink& sink, std::int64_t i, int count) {
  std::uint16_t marks = 0;
  std::memcpy(&marks, k.bitmap + i / 8, count > 8 ? 2 : 1);
  std::uint64_t codes;
  store_u4(&codes, exponent_code(k, load_ahead(k.x + i, count)));
  codes = gather_nibbles(codes, marks);
  const int bits = 4 * __builtin_popcount(marks), first = bits < 32 ? bits : 32;
  put_bits(sink, codes & 0xffffffff, first);
  put_bits(sink, codes >> 32, bits - first);
}

void exponent_codes(const ExponentCodes& args, std::int64_t begin, std::int64_t end) {
  const ExponentCodes k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment, segment = first / kMarkSegment;
    BitSink sink = bit_sink(k.codes, 4 * k.starts[segment], k.edges + segment);
    std::int64_t i = first;
    for (; stop - i >= kLanes; i += kLanes) exponent_step(k, sink, i, kLanes);
    if (i < stop) exponent_step(k, sink, i, int(stop - i));
    finish_bits(sink);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
