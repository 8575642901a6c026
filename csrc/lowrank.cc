#include "lowrank.h"

#include <vector>

#include "dispatch.h"

namespace gradwire {

namespace {

std::int64_t tiles(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

// Runs a kernel over the tiles of a matrix of n elements.
template <class Args>
void run_tiles(void (*KernelTable::*kernel)(const Args&, std::int64_t, std::int64_t), const Args& args,
               std::int64_t count, std::int64_t n, int threads) {
  const auto function = active().*kernel;
  count_call();
  if (count == 0) return;
  const std::int64_t team = n < kSerialBelow || in_forked_child() ? 1 : std::clamp<std::int64_t>(threads, 1, count);
  parallel_tasks(int(team), [&](int i) { function(args, count * i / team, count * (i + 1) / team); });
}

// Fills `out` with the sum of the parts of its size that `fill(parts)` makes; of one part without a second copy.
template <class Fill>
void sum_parts(float* out, std::int64_t size, std::int64_t count, int threads, const Fill& fill) {
  if (count == 1) return fill(out);
  if (count == 0) return std::fill(out, out + size, 0.0f);
  std::vector<float> parts(std::size_t(size * count));
  fill(parts.data());
  parallel_for(size, 16, threads, [&](std::int64_t begin, std::int64_t end, int) {
    std::copy(parts.data() + begin, parts.data() + end, out + begin);
    for (std::int64_t part = 1; part < count; ++part)
      for (std::int64_t i = begin; i < end; ++i) out[i] = out[i] + parts[std::size_t(part * size + i)];
  });
}

}  // namespace

void lowrank_left(LowrankLeft args, float* left, int threads) {
  const std::int64_t across = tiles(args.columns, kTileColumns);
  sum_parts(left, args.rank * args.rows, across, threads, [&](float* parts) {
    args.parts = parts;
    const std::int64_t count = across * tiles(args.rows, kLeftRows);
    run_tiles(&KernelTable::lowrank_left, args, count, args.rows * args.columns, threads);
  });
}

void lowrank_right(LowrankRight args, float* right, int threads) {
  const std::int64_t down = tiles(args.rows, kRightRows);
  sum_parts(right, args.rank * args.columns, down, threads, [&](float* parts) {
    args.parts = parts;
    run_tiles(&KernelTable::lowrank_right, args, down * tiles(args.columns, kTileColumns), args.rows * args.columns,
              threads);
  });
}

void lowrank_add_decoded(const LowrankAddDecoded& args, int threads) {
  const std::int64_t count = tiles(args.columns, kTileColumns) * tiles(args.rows, kLeftRows);
  run_tiles(&KernelTable::lowrank_add_decoded, args, count, args.rows * args.columns, threads);
}

}  // namespace gradwire
