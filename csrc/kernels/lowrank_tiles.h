// What the kernels of thin factors share. A range of theirs are tiles of the matrix, from left to right and then down.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kRankGroup = 4;  // rows of a factor whose sums stay in registers
constexpr int kRowsAtOnce = 4;  // of the matrix, for each of which there are such sums

struct MatrixTile {
  std::int64_t row, rows, column, columns;
};

GRADWIRE_INLINE std::int64_t at_most(std::int64_t count, std::int64_t limit) { return count < limit ? count : limit; }

GRADWIRE_INLINE MatrixTile matrix_tile(std::int64_t i, std::int64_t height, std::int64_t rows, std::int64_t columns) {
  const std::int64_t across = (columns + kTileColumns - 1) / kTileColumns;
  const std::int64_t row = i / across * height, column = i % across * kTileColumns;
  return {row, at_most(rows - row, height), column, at_most(columns - column, kTileColumns)};
}

GRADWIRE_INLINE void prefetch_floats(const float* p, std::int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + 4 * std::uintptr_t(ahead)));
}

// Elements of the matrix, asking for those that lie `ahead`; with kSum they become residual + grad first.
template <bool kSum>
GRADWIRE_INLINE F32 matrix_values(const Thin& a, std::int64_t i, int lanes, std::int64_t ahead, U32& worst) {
  prefetch_floats(a.x + i, ahead);
  if constexpr (!kSum) return load(a.x + i, lanes);
  const Feedback& k = a.feedback;
  prefetch_floats(k.grad + i, ahead);
  const F32 residual = load(k.residual + i, lanes), sum = residual + load(k.grad + i, lanes);
  store(k.residual + i, sum, lanes);
  if (k.status) store(k.grad + i, residual, lanes), watch(worst, sum);
  return sum;
}

// The sum of the lanes, as a tree.
GRADWIRE_INLINE float tree_sum(F32 x) {
  x = x + swap_lanes<8>(x), x = x + swap_lanes<4>(x), x = x + swap_lanes<2>(x), x = x + swap_lanes<1>(x);
  float lanes[kLanes];
  store(lanes, x);
  return lanes[0];
}

template <int kCount>
struct Rank {
  static constexpr int value = kCount;
};

// Calls step(how many rows of a factor, as a Rank, the first of them) for all `rank` of them.

template <class Step>
GRADWIRE_INLINE void each_rank_group(std::int64_t rank, const Step& step) {
  std::int64_t k = 0;
  for (; rank - k >= kRankGroup; k += kRankGroup) step(Rank<kRankGroup>{}, k);
  if (rank - k == 3) step(Rank<3>{}, k);
  if (rank - k == 2) step(Rank<2>{}, k);
  if (rank - k == 1) step(Rank<1>{}, k);
}

}  // namespace gradwire::GRADWIRE_TARGET
