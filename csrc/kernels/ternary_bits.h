// 2-bit codes as a bit for each that is not 0, and the signs of those.
#pragma once

#include "kernels/bit_words.h"

namespace gradwire::GRADWIRE_TARGET {

// 32 codes from element i on, each in two bits from the lowest up: the sign below, whether it is not 0 above.
GRADWIRE_INLINE std::uint64_t codes_from(const ByteRun& codes, std::int64_t i) {
  std::uint64_t x = word_at(codes, i / 4);
  x = (x >> 4 & 0x0f0f0f0f0f0f0f0f) | (x & 0x0f0f0f0f0f0f0f0f) << 4;
  return (x >> 2 & 0x3333333333333333) | (x & 0x3333333333333333) << 2;
}

GRADWIRE_INLINE std::uint32_t even_bits(std::uint64_t x) {
#if defined(GRADWIRE_FAST_BITS)
  return std::uint32_t(gather_bits(x, 0x5555555555555555));
#endif
  x &= 0x5555555555555555;
  x = (x | x >> 1) & 0x3333333333333333;
  x = (x | x >> 2) & 0x0f0f0f0f0f0f0f0f;
  x = (x | x >> 4) & 0x00ff00ff00ff00ff;
  x = (x | x >> 8) & 0x0000ffff0000ffff;
  return std::uint32_t(x | x >> 16);
}

void ternary_counts(const TernaryCounts& args, std::int64_t begin, std::int64_t end) {
  const TernaryCounts k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment;
    std::int64_t found = 0;
    for (std::int64_t i = first; i < stop; i += 32)
      found += __builtin_popcountll(word_at(k.codes, i / 4) & 0xaaaaaaaaaaaaaaaa);
    k.counts[first / kMarkSegment] = found;
  }
}

void ternary_bits(const TernaryBits& args, std::int64_t begin, std::int64_t end) {
  const TernaryBits k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment, segment = first / kMarkSegment;
    BitSink signs = bit_sink(k.signs, k.starts[segment], k.edges + segment);
    for (std::int64_t i = first; i < stop; i += 32) {
      const std::uint64_t codes = codes_from(k.codes, i);
      const std::uint32_t marks = even_bits(codes >> 1);
      std::memcpy(k.bitmap + i / 8, &marks, stop - i >= 32 ? 4 : std::size_t((stop - i + 7) / 8));
      put_bits(signs, gather_bits(even_bits(codes), marks), __builtin_popcount(marks));
    }
    finish_bits(signs);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
