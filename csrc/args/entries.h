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
  std::uint16_t* indices;  // or null
  float* left;             // x itself, to be 0 where it was taken, or null
};

// Where marked elements of one segment go: from slot `count` on, which grows. There is room for 16 more than there are.
struct Taken {
  float* values;
  std::uint16_t* indices;
  std::int64_t* count;
};

// As of MarkBeyond, within one segment.
struct TakeBeyond {
  const float* x;
  float high, low;
  Taken taken;
};

// As of MarkDrawn, within one segment.
struct TakeDrawn {
  const float* x;
  float s;
  std::uint64_t key, step;
  Taken whole, drawn;
};

// All elements: 0 where they are not marked.
struct SpreadMarked {
  const float* x;
  const std::uint8_t* bitmap;
  float* values;
  float* left;  // as of TakeMarked
};

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

// Powers of two as 4 bits: the distance of the exponent from the largest one, and a sign; two to a byte, the first in
// its lower half. `edges`, for each segment: its part of a byte that another segment starts.
struct ExponentCodes {
  const float* x;
  const std::uint8_t* bitmap;
  const std::int64_t* starts;
  std::uint8_t* codes;
  std::uint8_t* edges;
  std::int32_t top;
};

// One rank's; `place`: how many codes there are before the range, and then before what follows it.
struct ExponentRank {
  ByteRun bitmap, codes;
  std::int64_t place;
  float addends[16];  // of each code
};

struct ExponentAddDecoded {
  ExponentRank* ranks;
  std::int64_t count;
  float* out;
  std::int64_t n;
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

// Of low < |x| < high, for each segment: the largest |x| of all elements, how many, the sum of y and of y^2 with
// y = (|x| - low) * unit.
constexpr std::int64_t kTailSegment = 1024;

struct TailMoments {
  const float* x;
  float* table;
  float low, high, unit;
};

}  // namespace gradwire
