// Where a count sketch puts a block of 16 elements: gradwire/ops/_sketch.py says which words decide.
#pragma once

#include "kernels/philox_words.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kSketchBlock = 16;
constexpr int kSketchMaxRows = 7;
constexpr std::int64_t kSketchGroup = 256;  // elements: 16 blocks, of which each row takes one batch of words

struct SketchWords {
  std::uint32_t words[kPhiloxWords * kSketchMaxRows];
};

// The words of the group of blocks that starts at element `first`.
GRADWIRE_INLINE void sketch_words(SketchWords& out, const PhiloxStream& stream, std::int64_t first, int rows) {
  philox_words(out.words, std::uint64_t(first) / kSketchBlock * std::uint64_t(rows) / 2, rows, stream);
}

struct SketchPlace {
  std::int64_t line;    // first of 16 columns
  std::uint32_t signs;  // bit l: the sign of element l
  std::uint32_t twist;  // element l is in column l ^ twist of the line
};

GRADWIRE_INLINE SketchPlace sketch_place(const SketchWords& w, int block, int row, int rows, std::uint64_t lines) {
  const std::uint32_t* const pair = w.words + 2 * (block * rows + row);
  return {std::int64_t(pair[0] * lines >> 32) * kSketchBlock, pair[1] & 0xffff, pair[1] >> 28};
}

GRADWIRE_INLINE float sketch_sign(const SketchPlace& p, int lane) {
  return (p.signs >> lane & 1) != 0 ? -1.0f : 1.0f;
}

}  // namespace gradwire::GRADWIRE_TARGET
