// How many bytes the codes of tagged elements take.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE int bytes_of_tags(std::uint64_t tags) {
  const std::uint64_t low = tags & 0x5555555555555555, high = tags >> 1 & 0x5555555555555555;
  return __builtin_popcountll(low) + 2 * __builtin_popcountll(high) + __builtin_popcountll(low & high);
}

void inceptionn_sizes(const InceptionnSizes& k, std::int64_t begin, std::int64_t end) {
  std::int64_t bytes = 0;
  for (std::int64_t i = begin; i < end; i += 32) {
    const std::int64_t count = end - i < 32 ? end - i : 32;
    std::uint64_t tags = 0;
    std::memcpy(&tags, k.tags + i / 4, std::size_t(count + 3) / 4);
    bytes += bytes_of_tags(count == 32 ? tags : tags & ((std::uint64_t{1} << 2 * count) - 1));
  }
  *k.bytes = bytes;
}

}  // namespace gradwire::GRADWIRE_TARGET
