// Arguments of: elements that are marked by a bit each, and what is written of those.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

constexpr std::int64_t kMarkSegment = 65536;

// A bit for each element, the first in the lowest bit of a byte, and how many are set in each segment.
struct Marks {
  std::uint8_t* bitmap;
  std::int32_t* counts;
};

// Marks everything that is not inside (-low, high): NaN too.
struct MarkBeyond : Marks {
  const float* x;
  float high, low;
};

// Marks |x| >= s in `whole`, and of the others those with |x| > u s in the base, u random in (0, 1).
struct MarkDrawn : Marks {
  Marks whole;
  const float* x;
  float s;
  std::uint64_t key, step;
};

// `starts`: how many marks there are before each segment, and in the end how many in all.
struct TakeMarked {
  const float* x;
  const std::uint8_t* bitmap;
  const std::int64_t* starts;
  float* values;
  std::uint16_t* indices;
};

// Of low < |x| < high, for each segment: the largest |x| of all elements, how many, the sum of y and of y^2 with
// y = (|x| - low) * unit.
constexpr std::int64_t kTailSegment = 1024;

struct TailMoments {
  const float* x;
  float* table;
  float low, high, unit;
};

}  // namespace gradwire
