// Marks what is not between two thresholds: one pass that reads the tensor and writes a bit an element.
#pragma once

#include "kernels/marks.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE int mark_beyond_step(const MarkBeyond& k, std::int64_t i, int count) {
  const F32 x = load_ahead(k.x + i, count);
  const Mask between = gt(x, set(-k.low)) & lt(x, set(k.high));
  return put_marks(k.bitmap, i, bits_outside(between, count), count);
}

void mark_beyond(const MarkBeyond& args, std::int64_t begin, std::int64_t end) {
  const MarkBeyond k = args;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t stop = end - i < kMarkSegment ? end : i + kMarkSegment, segment = i / kMarkSegment;
    std::int32_t found = 0;
    for (; stop - i >= kLanes; i += kLanes) found += mark_beyond_step(k, i, kLanes);
    if (i < stop) found += mark_beyond_step(k, i, int(stop - i)), i = stop;
    k.counts[segment] = found;
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
