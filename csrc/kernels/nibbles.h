// 16 codes of 4 bits in a word, the first in the lowest bits: between their lanes and the places where they are marked.
#pragma once

#include "kernels/bit_words.h"

namespace gradwire::GRADWIRE_TARGET {

// For each of 8 bits how many lower ones are set, a nibble each; and the reverse: which one is the j-th that is set.
struct Ranks {
  std::uint32_t below[256], place[256];
};

constexpr Ranks make_ranks() {
  Ranks ranks = {};
  for (int bits = 0; bits < 256; ++bits)
    for (int lane = 0, below = 0; lane < 8; below += bits >> lane & 1, ++lane) {
      ranks.below[bits] |= std::uint32_t(below) << 4 * lane;
      if (bits >> lane & 1) ranks.place[bits] |= std::uint32_t(lane) << 4 * below;
    }
  return ranks;
}

static constexpr Ranks kRanks = make_ranks();

GRADWIRE_INLINE U32 lanes_of_nibbles(std::uint64_t x) {
  const U32 low = set_u32(std::uint32_t(x)), high = set_u32(std::uint32_t(x >> 32));
  return shr(select(ge(iota(), set_u32(8)), high, low), shl(iota() & set_u32(7), 2)) & set_u32(15);
}

#if defined(GRADWIRE_FAST_BITS)
GRADWIRE_INLINE std::uint64_t mask_of_nibbles(std::uint16_t marks) {
  return scatter_bits(marks, 0x1111111111111111) * 15;
}
// To each marked lane its own of the lowest nibbles of x, in order. What the others get is of no meaning.
GRADWIRE_INLINE U32 spread_nibbles(std::uint64_t x, std::uint16_t marks) {
  return lanes_of_nibbles(scatter_bits(x, mask_of_nibbles(marks)));
}
// The marked nibbles of x, side by side from the lowest on.
GRADWIRE_INLINE std::uint64_t gather_nibbles(std::uint64_t x, std::uint16_t marks) {
  return gather_bits(x, mask_of_nibbles(marks));
}
#else
// To lane j the nibble of x that nibble j of `places` names.
GRADWIRE_INLINE U32 pick_nibbles(std::uint64_t x, std::uint64_t places) {
  const U32 place = lanes_of_nibbles(places);
  const U32 low = set_u32(std::uint32_t(x)), high = set_u32(std::uint32_t(x >> 32));
  return shr(select(ge(place, set_u32(8)), high, low), shl(place & set_u32(7), 2)) & set_u32(15);
}
GRADWIRE_INLINE U32 spread_nibbles(std::uint64_t x, std::uint16_t marks) {
  const std::uint32_t lower = 0x11111111u * std::uint32_t(__builtin_popcount(marks & 255));
  return pick_nibbles(x, kRanks.below[marks & 255] | std::uint64_t(kRanks.below[marks >> 8] + lower) << 32);
}
GRADWIRE_INLINE std::uint64_t gather_nibbles(std::uint64_t x, std::uint16_t marks) {
  if (marks == 0xffff) return x;
  const int low = 4 * __builtin_popcount(marks & 255), all = 4 * __builtin_popcount(marks);
  const std::uint64_t upper = kRanks.place[marks >> 8] | 0x88888888;
  store_u4(&x, pick_nibbles(x, kRanks.place[marks & 255] | upper << low));
  return x & ((std::uint64_t(1) << all) - 1);
}
#endif

}  // namespace gradwire::GRADWIRE_TARGET
