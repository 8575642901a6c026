// Arguments of: count sketches.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

// A count sketch: `rows` times `columns` counters, columns a multiple of 16. Ranges are those of the kernel's comment.
struct SketchAdd {
  const float* x;
  float* table;
  int rows;
  std::int64_t columns;
  std::uint64_t key, step;
  std::int64_t n;
};

struct SketchEstimate {
  const float* table;
  float* out;
  int rows;
  std::int64_t columns;
  std::uint64_t key, step;
};

}  // namespace gradwire
