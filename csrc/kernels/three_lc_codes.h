// 3LC codes of a block: five elements of -1, 0 or 1 are a byte 0 .. 242, and runs of zero bytes one byte of 243 .. 255.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kZeroGroup = 121;
constexpr int kFirstRun = 243;  // of two zero groups
constexpr int kLongestRun = 14;

GRADWIRE_INLINE std::int64_t groups_of(std::int64_t count) { return (count + 4) / 5; }

// 8 groups, a byte each, from the 40 bits of their elements: the first element is the lowest bit of a byte.
GRADWIRE_INLINE std::uint64_t spread_groups(const std::uint8_t* bits) {
  std::uint64_t x;
  std::memcpy(&x, bits, sizeof x);
  x = (x & 0xfffff) | (x & 0xfffff00000) << 12;
  x = (x & 0x000003ff000003ff) | (x & 0x000ffc00000ffc00) << 6;
  return (x & 0x001f001f001f001f) | (x & 0x03e003e003e003e0) << 3;
}

// The sum of the weights 81, 27, 9, 3, 1 of the elements that are set, for each of 8 groups.
GRADWIRE_INLINE std::uint64_t weights_of(std::uint64_t groups) {
  constexpr std::uint64_t kFirst = 0x0101010101010101;
  return (groups & kFirst) * 81 + (groups >> 1 & kFirst) * 27 + (groups >> 2 & kFirst) * 9 +
         (groups >> 3 & kFirst) * 3 + (groups >> 4 & kFirst);
}

// Bit i: byte i of the eight, all below 128, is not zero.
GRADWIRE_INLINE std::uint64_t nonzero_bytes(std::uint64_t x) {
  return ((x + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101) * 0x0102040810204080 >> 56;
}

constexpr int kTileGroups = 64;
constexpr int kGroupTile = 5 * kTileGroups;  // elements

// A bit for each element of a tile, and room to read 8 bytes at the last 40 bits.
struct TernaryTile {
  std::uint16_t plus[kGroupTile / kLanes + 2], minus[kGroupTile / kLanes + 2];
};

// Where the next byte goes, and how many groups are written; the zeros before the first that is not are only counted.
struct GroupWriter {
  std::uint8_t* out;
  std::int64_t done;
};

// Runs of zeros up to the group `next`. Where there are none, a byte is written that the next group overwrites.
GRADWIRE_INLINE void write_zeros(GroupWriter& w, std::int64_t next) {
  std::int64_t zeros = next - w.done;
  for (; zeros > kLongestRun; zeros -= kLongestRun) *w.out++ = std::uint8_t(kFirstRun - 2 + kLongestRun);
  *w.out = zeros == 1 ? std::uint8_t(kZeroGroup) : std::uint8_t(kFirstRun - 2 + zeros);
  w.out += zeros > 0;
  w.done = next;
}

// The groups of a tile, which begins at group `first`.
GRADWIRE_INLINE void write_groups(GroupWriter& w, const TernaryTile& tile, std::int64_t first) {
  const auto *const plus = reinterpret_cast<const std::uint8_t*>(tile.plus),
             *const minus = reinterpret_cast<const std::uint8_t*>(tile.minus);
  std::uint64_t groups[kTileGroups / 8], present = 0;
  for (int j = 0; j < kTileGroups / 8; ++j) {
    const std::uint64_t p = spread_groups(plus + 5 * j), m = spread_groups(minus + 5 * j);
    groups[j] = kZeroGroup * std::uint64_t{0x0101010101010101} + weights_of(p) - weights_of(m);
    present |= nonzero_bytes(p | m) << 8 * j;
  }
  for (; present; present &= present - 1) {
    const int group = __builtin_ctzll(present);
    write_zeros(w, first + group);
    *w.out++ = reinterpret_cast<const std::uint8_t*>(groups)[group];
    ++w.done;
  }
}

// What the elements of a block are compared with, and what is taken from those that exceed it.
struct Ternary {
  F32 plus, minus, scale;
  std::int64_t ahead;
};

GRADWIRE_INLINE Ternary ternary(float scale, std::int64_t block) {
  return {set(0.5f * scale), set(-0.5f * scale), set(scale), block_ahead(block)};
}

template <bool kKeep>
GRADWIRE_INLINE void take_ternary(const Ternary& t, const float* x, float* residual, int count, std::uint16_t& plus,
                                  std::uint16_t& minus) {
  // Where there is a residual the step that added it has asked for the memory ahead; else the arithmetic here has time.
  const F32 value = kKeep ? load(x, count) : load_ahead(x, count, t.ahead);
  const Mask above = gt(value, t.plus), below = lt(value, t.minus);
  if (kKeep) store(residual, select(above, value - t.scale, select(below, value + t.scale, value)), count);
  plus = bits(above), minus = bits(below);
}

template <bool kKeep>
GRADWIRE_INLINE void write_group_tile(GroupWriter& w, const Ternary& t, const float* x, float* residual, int count,
                                      std::int64_t first) {
  TernaryTile tile;
  if (count < kGroupTile) tile = {};
  int v = 0;
#pragma GCC unroll 4
  for (; (v + 1) * kLanes <= count; ++v)
    take_ternary<kKeep>(t, x + v * kLanes, residual + v * kLanes, kLanes, tile.plus[v], tile.minus[v]);
  if (v * kLanes < count)
    take_ternary<kKeep>(t, x + v * kLanes, residual + v * kLanes, count - v * kLanes, tile.plus[v], tile.minus[v]);
  write_groups(w, tile, first);
}

// The scale as it is sent: below 2^-120 it counts as zero.
GRADWIRE_INLINE float scale_of(U32 largest, float sparsity) {
  const std::uint32_t word = reduce_max(largest);
  float magnitude;
  std::memcpy(&magnitude, &word, sizeof magnitude);
  const float scale = sparsity * magnitude;
  return scale < 0x1p-120f ? 0.0f : scale;
}

// Writes the bytes of a block to where they would be if all blocks before were as long as they can be. A block whose
// scale is zero or not finite has none.
template <bool kKeep>
GRADWIRE_INLINE void write_ternary_block(const ThreeLc& k, const float* x, float* residual, std::int64_t first,
                                         std::int64_t count, float scale) {
  const std::int64_t block = first / k.block;
  std::uint8_t* const out = k.stream + block * groups_of(k.block);
  GroupWriter w = {out, 0};
  k.scales[block] = scale;
  if (scale > 0.0f && scale <= 0x1.fffffep127f) {
    const Ternary t = ternary(scale, k.block);
    std::int64_t i = 0;
    for (; count - i >= kGroupTile; i += kGroupTile)
      write_group_tile<kKeep>(w, t, x + i, residual + i, kGroupTile, i / 5);
    if (i < count) write_group_tile<kKeep>(w, t, x + i, residual + i, int(count - i), i / 5);
    if (w.done < groups_of(count)) write_zeros(w, groups_of(count));
  } else if (kKeep && !(scale == 0.0f)) {
    for (std::int64_t i = 0; i < count; ++i) residual[i] = __builtin_nanf("");
  }
  k.lengths[block] = std::int16_t(w.out - out);
}

}  // namespace gradwire::GRADWIRE_TARGET
