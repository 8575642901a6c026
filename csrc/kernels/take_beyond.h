// What is not between two thresholds, side by side, in one pass: a little is marked, and taken while it is in the cache.
#pragma once

#include "kernels/mark_beyond.h"
#include "kernels/take_marked.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kTakeBlock = 1024;

// The marked elements of a block whose first one is `first`. Behind the last entry there is room for 16 more.
GRADWIRE_INLINE void take_block(const Taken& taken, const float* x, const std::uint8_t* bitmap, std::int64_t first,
                                std::int64_t stop) {
  const TakeMarked take = {x, bitmap, nullptr, taken.values, taken.indices, nullptr};
  for (std::int64_t i = first; i < stop; i += 64)
    *taken.count += take_word(take, i, marks_at(bitmap, i - first, stop - first), stop, *taken.count,
                              *taken.count + kMarkSegment);
}

void take_beyond(const TakeBeyond& args, std::int64_t begin, std::int64_t end) {
  const TakeBeyond k = args;
  std::uint8_t bitmap[kTakeBlock / 8];
  for (std::int64_t first = begin; first < end; first += kTakeBlock) {
    const std::int64_t count = end - first < kTakeBlock ? end - first : kTakeBlock;
    const MarkBeyond mark = {{bitmap, nullptr}, k.x + first, k.high, k.low};
    std::int64_t i = 0;
    for (; count - i >= kLanes; i += kLanes) mark_beyond_step(mark, i, kLanes);
    if (i < count) mark_beyond_step(mark, i, int(count - i));
    take_block(k.taken, k.x, bitmap, first, first + count);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
