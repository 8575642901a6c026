// Arguments of: the largest elements, their places, and random ones.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

// How many magnitudes are above a bracket and inside it.
struct Tally {
  std::int64_t above, inside;
};

// The magnitudes larger than `low` and at most `high`, as bits without the sign. `found` and `places` receive the
// values inside and their distance from the range's begin, as far as there is room. Without places, `found` receives
// magnitudes; with them nothing counts as above.
struct Bracket {
  std::uint32_t low, high;
  std::uint32_t *found, *places;
  std::int64_t room;
  Tally* tally;
};

struct TopkScan : Bracket {
  const float* x;
};

struct TopkScanFeedback : Feedback, Bracket {};

// Keeps the magnitudes larger than `least`, and the first `ties` that equal it: `count` in all.
struct TopkEmit {
  const float* x;
  float* residual;  // set to zero where it is kept, or null
  std::uint32_t least;
  std::int64_t ties, count;
  float* values;
  std::uint16_t* indices;
  std::int32_t* counts;
};

// `x` is a list of values, with room for 16 more of `places`, where they are in the segments of the tensor.
struct TopkEmitFound : TopkEmit {
  std::uint32_t* places;
};

// Entries of one rank: k indices of 16 bits, the count of each segment, and k floats, or, where there are levels, a bit
// for each entry that says which of the two it is.
struct SparsePart {
  const std::uint8_t *values, *indices, *counts;
  std::int64_t k;
  const float* levels;
};

struct SparseAddDecoded {
  const SparsePart* parts;
  std::int64_t count;
  float* out;
  std::int64_t n;
  float scale;
};

}  // namespace gradwire
