// Products with thin factors on a CPU: the kernels, and the operations of ops.py.
#include "family.h"

namespace gradwire {

// A matrix X of `rows` x `columns` is looked at in tiles, so that what is summed does not depend on threads: from the
// left factor's view of kLeftRows rows, from the right one's of kRightRows. A tile's part of a factor fits into a cache.
constexpr std::int64_t kTileColumns = 1024, kLeftRows = 16, kRightRows = 256;

// Where `grad` is not null, X is the residual, to which the gradient is added first.
struct Thin {
  const float* x;
  Feedback feedback;
  std::int64_t rows, columns, rank;
};

// For each tile of columns one left factor, (rank, rows), of which the sum is wanted: parts = right X^T.
struct LowrankLeft : Thin {
  const float* right;
  float* parts;
};
GRADWIRE_KERNEL(lowrank_left, LowrankLeft)

// For each tile of rows one right factor, (rank, columns): parts = left X.
struct LowrankRight : Thin {
  const float* left;
  float* parts;
};
GRADWIRE_KERNEL(lowrank_right, LowrankRight)

// out += scale * left^T right. `status` may be null; otherwise a result that is not finite sets it.
struct LowrankAddDecoded {
  const float *left, *right;
  float* out;
  std::int64_t rows, columns, rank;
  float scale;
  std::int32_t* status;
};
GRADWIRE_KERNEL(lowrank_add_decoded, LowrankAddDecoded)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// A range of all kernels here are tiles of the matrix, from left to right and then down.

constexpr int kRankGroup = kFewRegisters ? 2 : 4;  // rows of a factor whose sums stay in registers
constexpr int kRowsAtOnce = kFewRegisters ? 2 : 4;  // of the matrix, for each of which there are such sums

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

// The gradient is added to one row of a tile beforehand: such rows are few, and a form of their products that adds it
// would take as long to compile as that of many rows.
GRADWIRE_INLINE void add_to_row(const Thin& a, std::int64_t first, std::int64_t count, U32& worst) {
  std::int64_t j = 0;
  for (; count - j >= kLanes; j += kLanes) matrix_values<true>(a, first + j, kLanes, a.columns, worst);
  if (j < count) matrix_values<true>(a, first + j, int(count - j), a.columns, worst);
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
  if constexpr (kRankGroup > 2) {
    if (rank - k == 3) step(Rank<3>{}, k);
    if (rank - k == 2) step(Rank<2>{}, k);
  }
  if (rank - k == 1) step(Rank<1>{}, k);
}

// The left factor that belongs to a right one: the products of its rows with those of the matrix, which is read once.

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
  if (kRows == 1 && a.feedback.grad) add_to_row(a, first, tile.columns, worst);
  each_rank_group(a.rank, [&](auto group, std::int64_t k) GRADWIRE_LAMBDA {
    constexpr int kRank = decltype(group)::value;
    const float* const right = a.right + k * a.columns + tile.column;
    if (kRows > 1 && k == 0 && a.feedback.grad)
      left_products<(kRows > 1), kRows, kRank>(a, right, first, tile.columns, part, worst);
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

// The right factor that belongs to a left one: sums of the matrix's rows, which are read once, into a part of the
// factor that stays in a cache.

constexpr int kRowsAdded = kFewRegisters ? 2 : 8;  // at once

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
  if (kRows == 1 && a.feedback.grad) add_to_row(a, first, tile.columns, worst);
  each_rank_group(a.rank, [&](auto group, std::int64_t k) GRADWIRE_LAMBDA {
    constexpr int kRank = decltype(group)::value;
    const float* const left = a.left + k * a.rows + row;
    if (kRows > 1 && k == 0 && a.feedback.grad)
      right_products<(kRows > 1), kRows, kRank>(a, left, first, tile.columns, part, worst);
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

// Adds the product of two thin factors to a matrix, which is read and written once.

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
#endif

#include "targets/end.h"

#else

#include <vector>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

Size tiles(Size count, Size size) { return (count + size - 1) / size; }

// The tiles of a matrix of n elements, several to a chunk.
struct Tiles {
  Size count, each, n;

  Tiles(Size count, Size n, int threads)
      : count(count), each(is_shared(n, threads) ? std::max<Size>(count / (threads * kChunksEach), 1) : count), n(n) {}
  Size chunks() const { return count == 0 ? 0 : chunk_count(count, each); }
  template <class Args>
  void run(void (*function)(const Args&, Size, Size), const Args& args, Size chunk) const {
    function(args, chunk * each, std::min((chunk + 1) * each, count));
  }
};

// Runs a kernel over the tiles of a matrix of n elements.
template <class Args>
void run_tiles(const Kernel<Args>& kernel, const Args& args, Size count, Size n, int threads) {
  const auto function = kernel.of[active_place()];
  const Tiles tiles(count, n, threads);
  count_call();
  if (count > 0) parallel_chunks(tiles.chunks(), threads, [&](Size chunk) { tiles.run(function, args, chunk); });
}

// Fills `out` with the sum of the parts of its size that the kernel makes of tiles; of one part without a second copy.
template <class Args>
void sum_parts(const Kernel<Args>& kernel, Args args, float* out, Size size, Size parts, Size count, int threads) {
  const Size n = args.rows * args.columns;
  args.parts = out;
  if (parts == 1) return run_tiles(kernel, args, count, n, threads);
  if (parts == 0) return std::fill(out, out + size, 0.0f);
  std::vector<float> made(std::size_t(size * parts));
  args.parts = made.data();
  const auto function = kernel.of[active_place()];
  const Tiles tiles(count, n, threads);
  const Size each = chunk_size(size, 16, threads);
  bool summing = false;
  const auto sum = [&](Size begin, Size end) {
    std::copy(made.data() + begin, made.data() + end, out + begin);
    for (Size part = 1; part < parts; ++part)
      for (Size i = begin; i < end; ++i) out[i] = out[i] + made[std::size_t(part * size + i)];
  };
  const auto work = [&](Size chunk) {
    summing ? sum(chunk * each, std::min((chunk + 1) * each, size)) : tiles.run(function, args, chunk);
  };
  const auto next = [&] {
    if (summing) return Size{0};
    summing = true;
    return chunk_count(size, each);
  };
  count_call();
  parallel_passes(tiles.chunks(), threads, work, next);
}

Thin thin(const float* x, const Feedback& feedback, Size rank, Size rights, Size lefts) {
  if (rank < 1) throw std::invalid_argument("rank must be at least 1");
  return {x, feedback, lefts / rank, rights / rank, rank};
}

void make_left(const LowrankLeft& args, float* left, int threads) {
  const Size across = tiles(args.columns, kTileColumns);
  const Size count = across * tiles(args.rows, kLeftRows);
  sum_parts(kernels::lowrank_left, args, left, args.rank * args.rows, across, count, threads);
}

void make_right(const LowrankRight& args, float* right, int threads) {
  const Size down = tiles(args.rows, kRightRows);
  const Size count = down * tiles(args.columns, kTileColumns);
  sum_parts(kernels::lowrank_right, args, right, args.rank * args.columns, down, count, threads);
}

void lowrank_left(const float* x, const float* right, float* left, Size rank, Size rights, Size lefts, Size,
                  int threads) {
  make_left({thin(x, {}, rank, rights, lefts), right, nullptr}, left, threads);
}
GRADWIRE_OPERATION(lowrank_left)

void lowrank_left_feedback(float* grad, float* residual, const float* right, float* left, Size rank,
                           Maybe<std::int32_t> status, Size rights, Size lefts, Size, int threads) {
  const Feedback feedback = {grad, residual, status.data};
  make_left({thin(residual, feedback, rank, rights, lefts), right, nullptr}, left, threads);
}
GRADWIRE_OPERATION(lowrank_left_feedback)

void lowrank_right(const float* x, const float* left, float* right, Size rank, Size lefts, Size rights, Size,
                   int threads) {
  make_right({thin(x, {}, rank, rights, lefts), left, nullptr}, right, threads);
}
GRADWIRE_OPERATION(lowrank_right)

void lowrank_right_feedback(float* grad, float* residual, const float* left, float* right, Size rank,
                            Maybe<std::int32_t> status, Size lefts, Size rights, Size, int threads) {
  const Feedback feedback = {grad, residual, status.data};
  make_right({thin(residual, feedback, rank, rights, lefts), left, nullptr}, right, threads);
}
GRADWIRE_OPERATION(lowrank_right_feedback)

void lowrank_add_decoded(const float* left, const float* right, float* out, Size rank, double scale,
                         Maybe<std::int32_t> status, Size lefts, Size rights, Size n, int threads) {
  const Thin sizes = thin(out, {}, rank, rights, lefts);
  const Size count = tiles(sizes.columns, kTileColumns) * tiles(sizes.rows, kLeftRows);
  run_tiles(kernels::lowrank_add_decoded,
            {left, right, out, sizes.rows, sizes.columns, rank, float(scale), status.data}, count, n, threads);
}
GRADWIRE_OPERATION(lowrank_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
// A matrix of n elements and its factors, whose sums are compared with guards behind them.
static void check_lowrank(const std::string& target, Size columns, Size rank) {
  using namespace selftest;
  const std::vector<float> factor = Buffers::values(rank * 100003);
  for (const bool sum : {false, true}) {
    compare(target, "lowrank_left", [&](Buffers& x, Size n) {
      const Size rows = n / columns;
      x.c.resize(std::size_t(rank * n + kGuard));
      if (sum)
        lowrank_left_feedback(x.b.data(), x.a.data(), factor.data(), x.c.data(), rank, {x.status.data()},
                              rank * columns, rank * rows, n, 1);
      else
        lowrank_left(x.a.data(), factor.data(), x.c.data(), rank, rank * columns, rank * rows, n, 1);
    });
    compare(target, "lowrank_right", [&](Buffers& x, Size n) {
      const Size rows = n / columns;
      x.c.resize(std::size_t(rank * columns + kGuard));
      if (sum)
        lowrank_right_feedback(x.b.data(), x.a.data(), factor.data(), x.c.data(), rank, {x.status.data()}, rank * rows,
                               rank * columns, n, 1);
      else
        lowrank_right(x.a.data(), factor.data(), x.c.data(), rank, rank * rows, rank * columns, n, 1);
    });
  }
  compare(target, "lowrank_add_decoded", [&](Buffers& x, Size n) {
    const float* const left = factor.data();
    lowrank_add_decoded(left, left + 7, x.a.data(), rank, 0.3, {x.status.data()}, n / columns * rank, columns * rank, n,
                        1);
  });
}

GRADWIRE_SELFTEST_OF(lowrank) {
  for (const Size columns : {1, 31, 1100})
    for (const Size rank : {1, 2, 3, 4, 6}) check_lowrank(target, columns, rank);
}
#endif

}  // namespace gradwire::operations

#endif
