// Adds +step or -step where a bitmap says so, all ranks to 64 elements at a time.
#pragma once

#include "kernels/bit_words.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void add_steps(Sums& sums, TernaryRank& rank, std::int64_t i, std::int64_t n) {
  prefetch_next(rank.bitmap, i / 8), prefetch_next(rank.signs, rank.place / 8);
  const std::uint64_t marks = bits_of_elements(rank.bitmap, i, n);
  const std::uint64_t positive = scatter_bits(bits_from(rank.signs, rank.place), marks);
  rank.place += __builtin_popcountll(marks);
  const F32 up = set(rank.step), down = set(-rank.step);
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
    const F32 step = select(mask_of(std::uint16_t(positive >> 16 * part)), up, down);
    sums.of[part] = select(mask_of(std::uint16_t(marks >> 16 * part)), sums.of[part] + step, sums.of[part]);
  }
}

void ternary_add_bits(const TernaryAddBits& args, std::int64_t begin, std::int64_t end) {
  const TernaryAddBits k = args;
  for (std::int64_t i = begin; i < end; i += 64) {
    Sums sums = load_sums(k.out + i, end - i);
    for (std::int64_t w = 0; w < k.count; ++w) add_steps(sums, k.ranks[w], i, k.n);
    store_sums(k.out + i, sums, end - i);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
