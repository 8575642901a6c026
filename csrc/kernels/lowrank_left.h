// The left factor that belongs to a right one: the products of its rows with those of the matrix, which is read once.
#pragma once

#include "kernels/lowrank_tiles.h"

namespace gradwire::GRADWIRE_TARGET {

template <bool kSum, int kRows, int kRank>
GRADWIRE_INLINE void left_step(const LowrankLeft& a, F32 (&sums)[kRows][kRank], const float* right, std::int64_t i,
                               int lanes, U32& worst) {
  F32 factors[kRank];
  for (int k = 0; k < kRank; ++k) factors[k] = load(right + k * a.columns, lanes);
  for (int row = 0; row < kRows; ++row) {
    const F32 values = matrix_values<kSum>(a, i + row * a.columns, lanes, kRows * a.columns, worst);
    for (int k = 0; k < kRank; ++k) sums[row][k] = sums[row][k] + values * factors[k];
  }
}

// `out` is where the first row of the matrix, which begins at element `first`, belongs in the first row of the factor.
template <bool kSum, int kRows, int kRank>
GRADWIRE_INLINE void left_products(const LowrankLeft& a, const float* right, std::int64_t first, std::int64_t count,
                                   float* out, U32& worst) {
  F32 sums[kRows][kRank];
  for (int row = 0; row < kRows; ++row)
    for (int k = 0; k < kRank; ++k) sums[row][k] = set(0.0f);
  std::int64_t j = 0;
  for (; count - j >= kLanes; j += kLanes) left_step<kSum>(a, sums, right + j, first + j, kLanes, worst);
  if (j < count) left_step<kSum>(a, sums, right + j, first + j, int(count - j), worst);
  for (int row = 0; row < kRows; ++row)
    for (int k = 0; k < kRank; ++k) out[k * a.rows + row] = tree_sum(sums[row][k]);
}

// Some rows of a tile, of which the gradient is added with the first group.
template <int kRows>
GRADWIRE_INLINE void left_rows(const LowrankLeft& a, const MatrixTile& tile, std::int64_t row, U32& worst) {
  const std::int64_t first = row * a.columns + tile.column;
  float* const part = a.parts + tile.column / kTileColumns * a.rank * a.rows + row;
  each_rank_group(a.rank, [&](auto group, std::int64_t k) GRADWIRE_LAMBDA {
    constexpr int kRank = decltype(group)::value;
    const float* const right = a.right + k * a.columns + tile.column;
    if (k == 0 && a.feedback.grad)
      left_products<true, kRows, kRank>(a, right, first, tile.columns, part, worst);
    else
      left_products<false, kRows, kRank>(a, right, first, tile.columns, part + k * a.rows, worst);
  });
}

void lowrank_left(const LowrankLeft& args, std::int64_t begin, std::int64_t end) {
  const LowrankLeft a = args;
  U32 worst = set_u32(0);
  for (std::int64_t i = begin; i < end; ++i) {
    const MatrixTile tile = matrix_tile(i, kLeftRows, a.rows, a.columns);
    std::int64_t row = 0;
    for (; tile.rows - row >= kRowsAtOnce; row += kRowsAtOnce) left_rows<kRowsAtOnce>(a, tile, tile.row + row, worst);
    for (; row < tile.rows; ++row) left_rows<1>(a, tile, tile.row + row, worst);
  }
  if (a.feedback.status) flag_nonfinite(a.feedback.status, worst);
}

}  // namespace gradwire::GRADWIRE_TARGET
