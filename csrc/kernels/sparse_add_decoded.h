// Adds the sparse payloads of all ranks, one after the other, segment by segment.
//
// The counts and indices are a peer's: whatever they say, nothing is read beyond the k values of a rank and nothing is
// written outside the sum.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kSegment = 65536;

GRADWIRE_INLINE std::int64_t count_in(const SparseAddDecoded& k, std::int64_t w, std::int64_t segment,
                                      std::int64_t left) {
  std::int32_t count;
  std::memcpy(&count, k.counts.data + w * k.counts.stride + segment * std::int64_t(sizeof count), sizeof count);
  const std::int64_t covered = count < 0 ? 0 : count;
  return covered < left ? covered : left;
}

// `place`: how many values of rank w belong to earlier segments.
GRADWIRE_INLINE void add_segment(const SparseAddDecoded& k, std::int64_t w, std::int64_t segment, std::int64_t& place) {
  const std::int64_t stop = place + count_in(k, w, segment, k.k - place);
  const std::uint8_t* const values = k.values.data + w * k.values.stride;
  const std::uint8_t* const indices = k.indices.data + w * k.indices.stride;
  constexpr std::int64_t kAhead = 32;
  for (; place < stop; ++place) {
    std::uint16_t low;
    // No further than this segment: there the bytes are indices.
    if (stop - place > kAhead) {
      std::memcpy(&low, indices + (place + kAhead) * std::int64_t(sizeof low), sizeof low);
      __builtin_prefetch(k.out + segment * kSegment + low, 1);
    }
    float value;
    std::memcpy(&low, indices + place * std::int64_t(sizeof low), sizeof low);
    std::memcpy(&value, values + place * std::int64_t(sizeof value), sizeof value);
    const std::int64_t index = segment * kSegment + low;
    if (index < k.n) k.out[index] = k.out[index] + k.scale * value;
  }
}

static void sparse_add_decoded(const SparseAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const SparseAddDecoded k = args;
  constexpr std::int64_t kRanks = 64;  // whose places are kept at a time
  for (std::int64_t first = 0; first < k.values.count; first += kRanks) {
    const std::int64_t ranks = k.values.count - first < kRanks ? k.values.count - first : kRanks;
    std::int64_t places[kRanks] = {};
    for (std::int64_t w = 0; w < ranks; ++w)
      for (std::int64_t s = 0; s < begin / kSegment; ++s) places[w] += count_in(k, first + w, s, k.k - places[w]);
    for (std::int64_t s = begin / kSegment; s * kSegment < end; ++s)
      for (std::int64_t w = 0; w < ranks; ++w) add_segment(k, first + w, s, places[w]);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
