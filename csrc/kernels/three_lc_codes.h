// 3LC codes of a block: five elements of -1, 0 or 1 are a byte 0 .. 242, and runs of zero bytes one byte of 243 .. 255.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kZeroGroup = 121;
constexpr int kFirstRun = 243;  // of two zero groups
constexpr int kLongestRun = 14;

GRADWIRE_INLINE std::int64_t groups_of(std::int64_t count) { return (count + 4) / 5; }

// The weight of a set of elements in their group; bit 0 is the first, whose weight is 81.
struct GroupWeights {
  std::uint8_t of[32];
  constexpr GroupWeights() : of() {
    const int weight[5] = {81, 27, 9, 3, 1};
    for (int set = 0; set < 32; ++set)
      for (int i = 0; i < 5; ++i) of[set] = std::uint8_t(of[set] + (set >> i & 1) * weight[i]);
  }
};

// Where the next byte goes, and how many zero groups are not written yet.
struct GroupWriter {
  std::uint8_t* out;
  std::int64_t zeros;
};

GRADWIRE_INLINE void flush_zeros(GroupWriter& w) {
  for (; w.zeros >= 2; w.zeros -= w.zeros < kLongestRun ? w.zeros : kLongestRun)
    *w.out++ = std::uint8_t(kFirstRun - 2 + (w.zeros < kLongestRun ? w.zeros : kLongestRun));
  if (w.zeros == 1) *w.out++ = kZeroGroup;
  w.zeros = 0;
}

// `count` groups, at most 12, from the bits of their positive and their negative elements.
GRADWIRE_INLINE void write_groups(GroupWriter& w, std::uint64_t plus, std::uint64_t minus, int count) {
  static constexpr GroupWeights weights;
  int at = 0;
  for (std::uint64_t any = plus | minus; any;) {
    const int group = __builtin_ctzll(any) / 5;
    w.zeros += group - at;
    flush_zeros(w);
    *w.out++ = std::uint8_t(kZeroGroup + weights.of[plus >> 5 * group & 31] - weights.of[minus >> 5 * group & 31]);
    any &= ~(std::uint64_t{31} << 5 * group);
    at = group + 1;
  }
  w.zeros += count - at;
}

// What the elements of a block are compared with, and what is taken from those that exceed it.
struct Ternary {
  F32 plus, minus, scale;
};

GRADWIRE_INLINE Ternary ternary(float scale) { return {set(0.5f * scale), set(-0.5f * scale), set(scale)}; }

template <bool kKeep>
GRADWIRE_INLINE void take_ternary(const Ternary& t, const float* x, float* residual, int count, std::uint64_t& plus,
                                  std::uint64_t& minus) {
  const F32 value = load(x, count);
  const Mask above = gt(value, t.plus), below = lt(value, t.minus);
  if (kKeep) store(residual, select(above, value - t.scale, select(below, value + t.scale, value)), count);
  plus = bits(above), minus = bits(below);
}

constexpr int kGroupTile = 5 * kLanes;  // elements, and so 16 groups

template <bool kKeep>
GRADWIRE_INLINE void write_group_tile(GroupWriter& w, const Ternary& t, const float* x, float* residual, int count) {
  std::uint64_t plus[5] = {}, minus[5] = {};
  for (int v = 0; v * kLanes < count; ++v) {
    const int left = count - v * kLanes, size = left < kLanes ? left : kLanes;
    take_ternary<kKeep>(t, x + v * kLanes, residual + v * kLanes, size, plus[v], minus[v]);
  }
  const std::uint64_t low_plus = plus[0] | plus[1] << 16 | plus[2] << 32 | plus[3] << 48;
  const std::uint64_t low_minus = minus[0] | minus[1] << 16 | minus[2] << 32 | minus[3] << 48;
  constexpr std::uint64_t kLow = (std::uint64_t{1} << 60) - 1;
  const int groups = int(groups_of(count));
  write_groups(w, low_plus & kLow, low_minus & kLow, groups < 12 ? groups : 12);
  if (groups > 12) write_groups(w, low_plus >> 60 | plus[4] << 4, low_minus >> 60 | minus[4] << 4, groups - 12);
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
    const Ternary t = ternary(scale);
    std::int64_t i = 0;
    for (; count - i >= kGroupTile; i += kGroupTile) write_group_tile<kKeep>(w, t, x + i, residual + i, kGroupTile);
    if (i < count) write_group_tile<kKeep>(w, t, x + i, residual + i, int(count - i));
    flush_zeros(w);
  } else if (kKeep && !(scale == 0.0f)) {
    for (std::int64_t i = 0; i < count; ++i) residual[i] = __builtin_nanf("");
  }
  k.lengths[block] = std::int16_t(w.out - out);
}

}  // namespace gradwire::GRADWIRE_TARGET
