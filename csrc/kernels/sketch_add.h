// Adds a vector into a count sketch. A range is one of rows, so that each sum is made in the order of the elements
// whatever the number of threads: row a stands for the places [a, a + 1) * span, span being n in whole groups.
#pragma once

#include "kernels/sketch_places.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void sketch_add_block(float* line, const float* x, const SketchPlace& p, int count) {
  for (int lane = 0; lane < count; ++lane) {
    float& sum = line[std::uint32_t(lane) ^ p.twist];
    sum = sum + x[lane] * sketch_sign(p, lane);
  }
}

void sketch_add(const SketchAdd& args, std::int64_t begin, std::int64_t end) {
  const SketchAdd k = args;
  const std::int64_t span = (k.n + kSketchGroup - 1) / kSketchGroup * kSketchGroup;
  if (span == 0) return;
  const PhiloxStream stream = philox_stream(k.key, k.step);
  const int first_row = int(begin / span), last_row = int((end + span - 1) / span);
  const std::uint64_t lines = std::uint64_t(k.columns / kSketchBlock);
  SketchWords words;
  for (std::int64_t i = 0; i < k.n; i += kSketchBlock) {
    if (i % kSketchGroup == 0) sketch_words(words, stream, i, k.rows);
    const int block = int(i % kSketchGroup) / kSketchBlock;
    const int count = k.n - i < kSketchBlock ? int(k.n - i) : kSketchBlock;
    for (int row = first_row; row < last_row; ++row) {
      const SketchPlace place = sketch_place(words, block, row, k.rows, lines);
      sketch_add_block(k.table + row * k.columns + place.line, k.x + i, place, count);
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
