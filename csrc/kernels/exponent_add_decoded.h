// Adds signed powers of two where a bitmap says so: 4 bits each, side by side. All ranks to 64 elements at a time.
#pragma once

#include "kernels/nibbles.h"

namespace gradwire::GRADWIRE_TARGET {

// The marks for which there are codes.
GRADWIRE_INLINE std::uint64_t coded_of(std::uint64_t marks, std::int64_t left) {
  while (__builtin_popcountll(marks) > (left < 0 ? 0 : left)) marks ^= std::uint64_t(1) << (63 - __builtin_clzll(marks));
  return marks;
}

GRADWIRE_INLINE void add_powers(Sums& sums, ExponentRank& rank, std::int64_t i, std::int64_t n) {
  prefetch_next(rank.bitmap, i / 8), prefetch_next(rank.codes, rank.place / 2);
  const std::uint64_t marks = bits_of_elements(rank.bitmap, i, n);
  std::int64_t place = rank.place;
  rank.place += __builtin_popcountll(marks);
  const Table16 addends = table16(rank.addends);
  const std::uint64_t coded = coded_of(marks, 2 * rank.codes.size - place);
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
    const std::uint16_t here = std::uint16_t(coded >> 16 * part);
    const F32 addend = lookup(addends, spread_nibbles(bits_from(rank.codes, 4 * place), here));
    sums.of[part] = select(mask_of(here), sums.of[part] + addend, sums.of[part]);
    place += __builtin_popcount(here);
  }
}

void exponent_add_decoded(const ExponentAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const ExponentAddDecoded k = args;
  for (std::int64_t i = begin; i < end; i += 64) {
    Sums sums = load_sums(k.out + i, end - i);
    for (std::int64_t w = 0; w < k.count; ++w) add_powers(sums, k.ranks[w], i, k.n);
    store_sums(k.out + i, sums, end - i);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
