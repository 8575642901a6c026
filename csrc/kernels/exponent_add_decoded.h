// Adds signed powers of two where a bitmap says so: 4 bits each, side by side.
#pragma once

#include "kernels/bit_words.h"

namespace gradwire::GRADWIRE_TARGET {

// For each of 8 bits how many lower ones are set, a byte each.
struct Ranks {
  std::uint64_t of[256];
};

constexpr Ranks make_ranks() {
  Ranks ranks = {};
  for (int bits = 0; bits < 256; ++bits)
    for (int lane = 0, below = 0; lane < 8; below += bits >> lane & 1, ++lane)
      ranks.of[bits] |= std::uint64_t(below) << 8 * lane;
  return ranks;
}

static constexpr Ranks kRanks = make_ranks();

// For each of 16 lanes how many lower ones are marked.
GRADWIRE_INLINE U32 ranks_of(std::uint16_t marks) {
  const std::uint64_t lower = std::uint64_t(__builtin_popcount(marks & 255)) * 0x0101010101010101;
  const std::uint64_t both[2] = {kRanks.of[marks & 255], kRanks.of[marks >> 8] + lower};
  return load_u8(both);
}

// The nibble of each lane, by its rank among 16.
GRADWIRE_INLINE U32 nibbles_of(std::uint64_t nibbles, U32 ranks) {
  const U32 half = select(ge(ranks, set_u32(8)), set_u32(std::uint32_t(nibbles >> 32)), set_u32(std::uint32_t(nibbles)));
  return shr(half, shl(ranks & set_u32(7), 2)) & set_u32(15);
}

GRADWIRE_INLINE F32 power_of(const ExponentAddDecoded& k, U32 codes) {
  const U32 top = set_u32(std::uint32_t(k.top)), down = codes & set_u32(7);
  const U32 exponent = select(ge(top, down), top - down, set_u32(0));
  const U32 power = select(eq(top, set_u32(255)), set_u32(0x7fc00000), shl(exponent, 23));
  return as_f32(power | shl(codes & set_u32(8), 28));
}

// The codes that are there for 16 marks.
GRADWIRE_INLINE std::uint16_t coded_of(std::uint16_t marks, std::int64_t left) {
  while (__builtin_popcount(marks) > (left < 0 ? 0 : left)) marks ^= std::uint16_t(0x80000000u >> __builtin_clz(marks));
  return marks;
}

GRADWIRE_INLINE void add_powers(const ExponentAddDecoded& k, std::int64_t i, int count, std::uint16_t marks,
                                std::int64_t& place) {
  const std::uint16_t coded = coded_of(marks, 2 * k.codes.size - place);
  const U32 codes = nibbles_of(bits_from(k.codes, 4 * place), ranks_of(coded));
  const F32 out = load(k.out + i, count);
  store(k.out + i, select(mask_of(coded), out + power_of(k, codes) * set(k.scale), out), count);
  place += __builtin_popcount(marks);
}

static void exponent_add_decoded(const ExponentAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const ExponentAddDecoded k = args;
  std::int64_t place = *k.place;
  for (std::int64_t i = begin; i < end; i += 64) {
    std::uint64_t word = bits_of_elements(k.bitmap, i, k.n);
    for (std::int64_t j = i; word != 0; j += kLanes, word >>= kLanes)
      if (std::uint16_t(word) != 0)
        add_powers(k, j, k.n - j < kLanes ? int(k.n - j) : kLanes, std::uint16_t(word), place);
  }
  *k.place = place;
}

}  // namespace gradwire::GRADWIRE_TARGET
