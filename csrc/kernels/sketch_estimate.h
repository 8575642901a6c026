// Reads the elements of a vector off its count sketch: the median over the rows.
#pragma once

#include "kernels/sketch_places.h"

namespace gradwire::GRADWIRE_TARGET {

// The middle one of `rows` values in each lane, by compare and swap. A comparison with NaN is false, as in the
// reference.
GRADWIRE_INLINE void sketch_median(float (*values)[kSketchBlock], int rows) {
  for (int last = rows - 1; last >= rows / 2; --last)
    for (int i = 0; i < last; ++i)
      for (int lane = 0; lane < kSketchBlock; ++lane) {
        const float a = values[i][lane], b = values[i + 1][lane];
        const bool swap = b < a;
        values[i][lane] = swap ? b : a;
        values[i + 1][lane] = swap ? a : b;
      }
}

void sketch_estimate(const SketchEstimate& args, std::int64_t begin, std::int64_t end) {
  const SketchEstimate k = args;
  const PhiloxStream stream = philox_stream(k.key, k.step);
  const std::uint64_t lines = std::uint64_t(k.columns / kSketchBlock);
  SketchWords words;
  float values[kSketchMaxRows][kSketchBlock];
  for (std::int64_t i = begin; i < end; i += kSketchBlock) {
    if (i % kSketchGroup == 0) sketch_words(words, stream, i, k.rows);
    for (int row = 0; row < k.rows; ++row) {
      const SketchPlace place = sketch_place(words, int(i % kSketchGroup) / kSketchBlock, row, k.rows, lines);
      const float* const line = k.table + row * k.columns + place.line;
      for (int lane = 0; lane < kSketchBlock; ++lane)
        values[row][lane] = line[std::uint32_t(lane) ^ place.twist] * sketch_sign(place, lane);
    }
    sketch_median(values, k.rows);
    const std::int64_t left = end - i < kSketchBlock ? end - i : kSketchBlock;
    std::memcpy(k.out + i, values[k.rows / 2], sizeof(float) * std::size_t(left));
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
