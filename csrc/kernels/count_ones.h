// How many elements are marked in each segment.
#pragma once

#include "kernels/bit_words.h"

namespace gradwire::GRADWIRE_TARGET {

void count_ones(const CountOnes& args, std::int64_t begin, std::int64_t end) {
  const CountOnes k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment;
    std::int64_t found = 0;
    for (std::int64_t i = first; i < stop; i += 64) found += __builtin_popcountll(bits_of_elements(k.bitmap, i, k.n));
    k.counts[first / kMarkSegment] = found;
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
