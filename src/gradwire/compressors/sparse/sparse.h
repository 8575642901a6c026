// What several files of this family use: marks, and entries that are added to a sum.
#pragma once

#include "marks.h"
#include "family.h"

namespace gradwire {

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
GRADWIRE_KERNEL(mark_beyond, MarkBeyond)

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
GRADWIRE_KERNEL(sparse_add_decoded, SparseAddDecoded)

}  // namespace gradwire
