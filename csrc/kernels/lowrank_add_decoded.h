// Adds the product of two thin factors to a matrix, which is read and written once.
#pragma once

#include "kernels/lowrank_tiles.h"

namespace gradwire::GRADWIRE_TARGET {

template <int kRows, int kRank>
GRADWIRE_INLINE void product_step(const float (&factors)[kRows][kRank], const float* right, float* out,
                                  std::int64_t columns, int lanes, U32& worst) {
  F32 values[kRank];
  for (int k = 0; k < kRank; ++k) values[k] = load(right + k * columns, lanes);
  for (int i = 0; i < kRows; ++i) {
    prefetch_floats(out + i * columns, kRows * columns);
    F32 sum = load(out + i * columns, lanes);
    for (int k = 0; k < kRank; ++k) sum = sum + set(factors[i][k]) * values[k];
    store(out + i * columns, sum, lanes);
    watch(worst, sum);
  }
}

template <int kRows, int kRank>
GRADWIRE_INLINE void add_products(const LowrankAddDecoded& a, const float* left, const float* right, float* out,
                                  std::int64_t count, U32& worst) {
  float factors[kRows][kRank];
  for (int i = 0; i < kRows; ++i)
    for (int k = 0; k < kRank; ++k) factors[i][k] = a.scale * left[k * a.rows + i];
  std::int64_t j = 0;
  for (; count - j >= kLanes; j += kLanes) product_step(factors, right + j, out + j, a.columns, kLanes, worst);
  if (j < count) product_step(factors, right + j, out + j, a.columns, int(count - j), worst);
}

template <int kRows>
GRADWIRE_INLINE void product_rows(const LowrankAddDecoded& a, const MatrixTile& tile, std::int64_t row, U32& worst) {
  float* const out = a.out + row * a.columns + tile.column;
  each_rank_group(a.rank, [&](auto group, std::int64_t k) GRADWIRE_LAMBDA {
    constexpr int kRank = decltype(group)::value;
    const float *const left = a.left + k * a.rows + row, *const right = a.right + k * a.columns + tile.column;
    add_products<kRows, kRank>(a, left, right, out, tile.columns, worst);
  });
}

void lowrank_add_decoded(const LowrankAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const LowrankAddDecoded a = args;
  U32 worst = set_u32(0);
  for (std::int64_t i = begin; i < end; ++i) {
    const MatrixTile tile = matrix_tile(i, kLeftRows, a.rows, a.columns);
    std::int64_t row = 0;
    for (; tile.rows - row >= kRowsAtOnce; row += kRowsAtOnce)
      product_rows<kRowsAtOnce>(a, tile, tile.row + row, worst);
    for (; row < tile.rows; ++row) product_rows<1>(a, tile, tile.row + row, worst);
  }
  if (a.status) flag_nonfinite(a.status, worst);
}

}  // namespace gradwire::GRADWIRE_TARGET
