// A few waves of a tile, added up in registers and then to the tile, a block of rows at a time.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kWaveRows = 4;
constexpr int kWaveVectors = 4;

// kRows rows from `row` on, kVectors vectors from `column` on, the last of `count` elements.
template <int kRows, int kVectors>
GRADWIRE_INLINE void add_waves_block(const AddWaves& k, std::int64_t row, std::int64_t column, int count) {
  F32 sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = set(0.0f);
  for (std::int64_t c = 0; c < k.count; ++c) {
    const float* const left = k.left + c * k.height + row;
    F32 wave[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      wave[v] = load(k.waves[c] + column + v * kLanes, v + 1 < kVectors ? kLanes : count);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = sums[r][v] + set(left[r]) * wave[v];
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      float* const to = k.out + (row + r) * k.stride + column + v * kLanes;
      const int there = v + 1 < kVectors ? kLanes : count;
      store(to, load(to, there) + sums[r][v] * set(k.scale), there);
    }
}

template <int kRows>
GRADWIRE_INLINE void add_waves_rows(const AddWaves& k, std::int64_t row) {
  constexpr std::int64_t kWide = kWaveVectors * kLanes;
  std::int64_t column = 0;
  for (; k.width - column >= kWide; column += kWide) add_waves_block<kRows, kWaveVectors>(k, row, column, kLanes);
  for (; k.width - column >= kLanes; column += kLanes) add_waves_block<kRows, 1>(k, row, column, kLanes);
  if (column < k.width) add_waves_block<kRows, 1>(k, row, column, int(k.width - column));
}

void add_waves(const AddWaves& args, std::int64_t begin, std::int64_t end) {
  const AddWaves k = args;
  std::int64_t row = begin;
  for (; end - row >= kWaveRows; row += kWaveRows) add_waves_rows<kWaveRows>(k, row);
  for (; row < end; ++row) add_waves_rows<1>(k, row);
}

}  // namespace gradwire::GRADWIRE_TARGET
