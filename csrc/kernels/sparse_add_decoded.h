// Adds sparse entries, one part after the other, segment by segment.
//
// The counts and indices are a peer's: whatever they say, nothing is read beyond the k entries of a part and nothing is
// written outside the sum.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kSegment = 65536;
constexpr std::int64_t kLine = 16;        // elements of a cache line
constexpr std::int64_t kFewerEach = 128;  // with an entry for so many elements most lines are touched by somebody

GRADWIRE_INLINE std::int64_t count_in(const SparsePart& part, std::int64_t segment, std::int64_t left) {
  std::int32_t count;
  std::memcpy(&count, part.counts + segment * std::int64_t(sizeof count), sizeof count);
  const std::int64_t covered = count < 0 ? 0 : count;
  return covered < left ? covered : left;
}

// What entry `place` adds. The levels are those of a clear and of a set bit, times the scale.
GRADWIRE_INLINE float addend(const SparsePart& part, std::int64_t place, const float* levels, float scale) {
  if (levels != nullptr) return levels[part.values[place / 8] >> place % 8 & 1];
  float value;
  std::memcpy(&value, part.values + place * std::int64_t(sizeof value), sizeof value);
  return scale * value;
}

// `near`: the segment of the sum is in a cache, or on its way.
template <bool near>
GRADWIRE_INLINE void add_entries(const SparseAddDecoded& k, const SparsePart& part, std::int64_t first,
                                 std::int64_t place, std::int64_t stop, const float* levels) {
  constexpr std::int64_t kAhead = 32;
  const bool inside = k.n - first >= kSegment;
  for (; place < stop; ++place) {
    std::uint16_t low;
    // No further than this segment: there the bytes are indices.
    if (!near && stop - place > kAhead) {
      std::memcpy(&low, part.indices + (place + kAhead) * std::int64_t(sizeof low), sizeof low);
      __builtin_prefetch(k.out + first + low, 1);
    }
    std::memcpy(&low, part.indices + place * std::int64_t(sizeof low), sizeof low);
    const std::int64_t index = first + low;
    if (inside || index < k.n) k.out[index] = k.out[index] + addend(part, place, levels, k.scale);
  }
}

// `places`: how many entries of each part belong to earlier segments.
GRADWIRE_INLINE void add_segment(const SparseAddDecoded& k, const SparsePart* parts, std::int64_t count,
                                 std::int64_t segment, std::int64_t* places) {
  const std::int64_t first = segment * kSegment, size = k.n - first < kSegment ? k.n - first : kSegment;
  std::int64_t entries = 0;
  for (std::int64_t p = 0; p < count; ++p) entries += count_in(parts[p], segment, parts[p].k - places[p]);
  const bool near = entries > size / kFewerEach;
  if (near)
    for (std::int64_t i = 0; i < size; i += kLine) __builtin_prefetch(k.out + first + i, 1, 2);
  for (std::int64_t p = 0; p < count; ++p) {
    const SparsePart& part = parts[p];
    const std::int64_t stop = places[p] + count_in(part, segment, part.k - places[p]);
    const float levels[2] = {part.levels ? k.scale * part.levels[0] : 0, part.levels ? k.scale * part.levels[1] : 0};
    if (near && part.levels)
      add_entries<true>(k, part, first, places[p], stop, levels);
    else if (near)
      add_entries<true>(k, part, first, places[p], stop, nullptr);
    else
      add_entries<false>(k, part, first, places[p], stop, part.levels ? levels : nullptr);
    places[p] = stop;
  }
}

static void sparse_add_decoded(const SparseAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const SparseAddDecoded k = args;
  constexpr std::int64_t kParts = 64;  // whose places are kept at a time
  for (std::int64_t next = 0; next < k.count; next += kParts) {
    const SparsePart* const parts = k.parts + next;
    const std::int64_t count = k.count - next < kParts ? k.count - next : kParts;
    std::int64_t places[kParts] = {};
    for (std::int64_t p = 0; p < count; ++p)
      for (std::int64_t s = 0; s < begin / kSegment; ++s) places[p] += count_in(parts[p], s, parts[p].k - places[p]);
    for (std::int64_t s = begin / kSegment; s * kSegment < end; ++s) add_segment(k, parts, count, s, places);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
