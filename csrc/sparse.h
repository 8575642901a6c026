// What several files of this family use: marks, and entries that are added to a sum.
#pragma once

#include <cstring>

#include "marks.h"
#if defined(GRADWIRE_TARGET)
#include "family.h"
#else
#include "dispatch.h"
#endif

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
GRADWIRE_KERNEL_SECOND(mark_beyond, MarkBeyond)

// Entries of one rank: k indices of 16 bits, the count of each segment, and k floats, or, where there are levels, a bit
// for each entry that says which of the two it is.
struct SparsePart {
  const std::uint8_t *values, *indices, *counts;
  std::int64_t k;
  const float* levels;
};

// `places`: for each part how many of its entries belong to segments before each one, and then those of the next part.
struct SparseAddDecoded {
  const SparsePart* parts;
  std::int64_t count;
  const std::int64_t* places;
  float* out;
  std::int64_t n;
  float scale;
};
GRADWIRE_KERNEL(sparse_add_decoded, SparseAddDecoded)

#if !defined(GRADWIRE_TARGET)
// Adds all parts to `out`. Whatever their counts say, no place is beyond the end of its part.
inline void add_parts(const std::vector<SparsePart>& parts, float* out, std::int64_t n, float scale, int threads) {
  std::vector<std::int64_t> places;
  places.reserve(parts.size() * std::size_t(mark_segments(n)));
  for (const SparsePart& part : parts) {
    std::int64_t place = 0;
    for (std::int64_t s = 0; s < mark_segments(n); ++s) {
      std::int32_t count;
      std::memcpy(&count, part.counts + s * std::int64_t(sizeof count), sizeof count);
      places.push_back(place);
      place = std::min(part.k, place + std::max(count, 0));
    }
  }
  run(kernels::sparse_add_decoded, {parts.data(), std::int64_t(parts.size()), places.data(), out, n, scale}, n,
      kMarkSegment, threads);
}
#endif

}  // namespace gradwire
