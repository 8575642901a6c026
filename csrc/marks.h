// What the segments of a tensor write end to end: where each one starts, and the bytes in which two of them meet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "family.h"

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
GRADWIRE_KERNEL(count_ones, CountOnes)

inline std::int64_t mark_segments(std::int64_t n) { return (n + kMarkSegment - 1) / kMarkSegment; }

// One number more than there are counts: the last is their sum. Whatever they say, none is above `most`.
template <class Count>
std::vector<std::int64_t> starts_of(const Count* counts, std::int64_t size, std::int64_t most) {
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t s = 0; s < size; ++s)
    starts.push_back(std::min(most, starts.back() + std::max<std::int64_t>(counts[s], 0)));
  return starts;
}

// Adds to the bytes in which a segment starts, not at their first bit, what it left in its edge.
inline void join_edges(std::uint8_t* out, const std::vector<std::int64_t>& starts,
                       const std::vector<std::uint8_t>& edges, int width) {
  for (std::size_t s = 0; s < edges.size(); ++s)
    if (edges[s] != 0) out[starts[s] * width / 8] |= edges[s];
}

}  // namespace gradwire
