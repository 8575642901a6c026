// Adds signed powers of two where a bitmap says so: 4 bits each, side by side. All ranks to 64 elements at a time.
#pragma once

#include "kernels/nibbles.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE F32 power_of(U32 codes, std::int32_t largest) {
  const U32 top = set_u32(std::uint32_t(largest)), down = codes & set_u32(7);
  const U32 exponent = select(ge(top, down), top - down, set_u32(0));
  const U32 power = select(eq(top, set_u32(255)), set_u32(0x7fc00000), shl(exponent, 23));
  return as_f32(power | shl(codes & set_u32(8), 28));
}

// The marks for which there are codes.
GRADWIRE_INLINE std::uint64_t coded_of(std::uint64_t marks, std::int64_t left) {
  while (__builtin_popcountll(marks) > (left < 0 ? 0 : left)) marks ^= std::uint64_t(1) << (63 - __builtin_clzll(marks));
  return marks;
}

GRADWIRE_INLINE void add_powers(Sums& sums, ExponentRank& rank, float scale, std::int64_t i, std::int64_t n) {
  prefetch_next(rank.bitmap, i / 8), prefetch_next(rank.codes, rank.place / 2);
  const std::uint64_t marks = bits_of_elements(rank.bitmap, i, n);
  std::int64_t place = rank.place;
  rank.place += __builtin_popcountll(marks);
  const std::uint64_t coded = coded_of(marks, 2 * rank.codes.size - place);
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
    const std::uint16_t here = std::uint16_t(coded >> 16 * part);
    const U32 codes = spread_nibbles(bits_from(rank.codes, 4 * place), here);
    sums.of[part] = select(mask_of(here), sums.of[part] + power_of(codes, rank.top) * set(scale), sums.of[part]);
    place += __builtin_popcount(here);
  }
}

static void exponent_add_decoded(const ExponentAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const ExponentAddDecoded k = args;
  for (std::int64_t i = begin; i < end; i += 64) {
    Sums sums = load_sums(k.out + i, end - i);
    for (std::int64_t w = 0; w < k.count; ++w) add_powers(sums, k.ranks[w], k.scale, i, k.n);
    store_sums(k.out + i, sums, end - i);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
