// The right factor that belongs to a left one: sums of the matrix's rows, which are read once, into a part of the
// factor that stays in a cache.
#pragma once

#include "kernels/lowrank_tiles.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kRowsAdded = 8;  // at once

template <bool kSum, int kRows, int kRank>
GRADWIRE_INLINE void right_step(const LowrankRight& a, const float (&factors)[kRows][kRank], float* out, std::int64_t i,
                                int lanes, U32& worst) {
  F32 sums[kRank];
  for (int k = 0; k < kRank; ++k) sums[k] = load(out + k * a.columns, lanes);
  for (int row = 0; row < kRows; ++row) {
    const F32 values = matrix_values<kSum>(a, i + row * a.columns, lanes, kRows * a.columns, worst);
    for (int k = 0; k < kRank; ++k) sums[k] = sums[k] + set(factors[row][k]) * values;
  }
  for (int k = 0; k < kRank; ++k) store(out + k * a.columns, sums[k], lanes);
}

// `left`: the element of the first row in the first row of the factor.
template <bool kSum, int kRows, int kRank>
GRADWIRE_INLINE void right_products(const LowrankRight& a, const float* left, std::int64_t first, std::int64_t count,
                                    float* out, U32& worst) {
  float factors[kRows][kRank];
  for (int row = 0; row < kRows; ++row)
    for (int k = 0; k < kRank; ++k) factors[row][k] = left[k * a.rows + row];
  std::int64_t j = 0;
  for (; count - j >= kLanes; j += kLanes) right_step<kSum>(a, factors, out + j, first + j, kLanes, worst);
  if (j < count) right_step<kSum>(a, factors, out + j, first + j, int(count - j), worst);
}

// Some rows of a tile, of which the gradient is added with the first group.
template <int kRows>
GRADWIRE_INLINE void right_rows(const LowrankRight& a, const MatrixTile& tile, std::int64_t row, float* part,
                                U32& worst) {
  const std::int64_t first = row * a.columns + tile.column;
  each_rank_group(a.rank, [&](auto group, std::int64_t k) GRADWIRE_LAMBDA {
    constexpr int kRank = decltype(group)::value;
    const float* const left = a.left + k * a.rows + row;
    if (k == 0 && a.feedback.grad)
      right_products<true, kRows, kRank>(a, left, first, tile.columns, part, worst);
    else
      right_products<false, kRows, kRank>(a, left, first, tile.columns, part + k * a.columns, worst);
  });
}

void lowrank_right(const LowrankRight& args, std::int64_t begin, std::int64_t end) {
  const LowrankRight a = args;
  U32 worst = set_u32(0);
  for (std::int64_t i = begin; i < end; ++i) {
    const MatrixTile tile = matrix_tile(i, kRightRows, a.rows, a.columns);
    float* const part = a.parts + tile.row / kRightRows * a.rank * a.columns + tile.column;
    for (std::int64_t k = 0; k < a.rank; ++k)
      std::memset(part + k * a.columns, 0, sizeof(float) * std::size_t(tile.columns));
    std::int64_t row = 0;
    for (; tile.rows - row >= kRowsAdded; row += kRowsAdded)
      right_rows<kRowsAdded>(a, tile, tile.row + row, part, worst);
    for (; row < tile.rows; ++row) right_rows<1>(a, tile, tile.row + row, part, worst);
  }
  if (a.feedback.status) flag_nonfinite(a.feedback.status, worst);
}

}  // namespace gradwire::GRADWIRE_TARGET
