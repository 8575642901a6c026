// Arguments of: bits that mark elements, and waves of tiles.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

// Elements that a count belongs to, and the low 16 bits of an index.
constexpr std::int64_t kMarkSegment = 65536;

// Bytes that may come from anybody: what lies beyond their end is 0.
struct ByteRun {
  const std::uint8_t* data;
  std::int64_t size;
};

// How many bits are set, for each segment.
struct CountOnes {
  ByteRun bitmap;
  std::int64_t n;
  std::int64_t* counts;
};

// A few waves of one tile: rows [begin, end) of out += scale * sum_c left[c][row] * waves[c][column].
struct AddWaves {
  const float* left;  // `count` times `height`
  const float* const* waves;
  std::int64_t count, height, width;
  float* out;
  std::int64_t stride;
  float scale;
};

}  // namespace gradwire
