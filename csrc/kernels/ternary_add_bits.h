// Adds +step or -step where a bitmap says so.
#pragma once

#include "kernels/bit_words.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void add_steps(const TernaryAddBits& k, std::int64_t i, int count, std::uint16_t marks,
                               std::uint16_t positive) {
  const F32 out = load(k.out + i, count);
  const F32 step = select(mask_of(positive), set(k.step), set(-k.step));
  store(k.out + i, select(mask_of(marks), out + step, out), count);
}

static void ternary_add_bits(const TernaryAddBits& args, std::int64_t begin, std::int64_t end) {
  const TernaryAddBits k = args;
  std::int64_t place = *k.place;
  for (std::int64_t i = begin; i < end; i += 64) {
    std::uint64_t marks = bits_of_elements(k.bitmap, i, k.n);
    std::uint64_t positive = scatter_bits(bits_from(k.signs, place), marks);
    place += __builtin_popcountll(marks);
    for (std::int64_t j = i; marks != 0; j += kLanes, marks >>= kLanes, positive >>= kLanes)
      if (std::uint16_t(marks) != 0)
        add_steps(k, j, k.n - j < kLanes ? int(k.n - j) : kLanes, std::uint16_t(marks), std::uint16_t(positive));
  }
  *k.place = place;
}

}  // namespace gradwire::GRADWIRE_TARGET
