// The mean magnitude of a tensor, whatever the threads.
#pragma once

#include <cstdint>
#include <vector>

#if defined(GRADWIRE_TARGET)
#include "family.h"
#else
#include "dispatch.h"
#endif

namespace gradwire {

// Of |x|, or of |x + residual| where there is one: a sum for each block.
struct MagnitudeSums {
  const float* x;
  const float* residual;
  float* sums;
  std::int64_t block;
};
GRADWIRE_KERNEL(magnitude_sums, MagnitudeSums)

// Elements of one partial sum: a part of the L1 cache, and few enough for float32.
constexpr std::int64_t kSumBlock = 4096;

#if !defined(GRADWIRE_TARGET)

// Neighbours at half the distance, then at half of that: the order of the reference, whatever the threads.
template <class T>
T sum_as_tree(std::vector<T>& sums) {
  std::size_t size = 1;
  while (size < sums.size()) size *= 2;
  sums.resize(size);
  for (std::size_t half = size / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  return sums[0];
}

// Of |x|, or of |x + added| where that is not null; 0 of no elements.
inline float mean_of_magnitudes(const float* x, const float* added, std::int64_t n, int threads) {
  std::vector<float> sums(std::size_t((n + kSumBlock - 1) / kSumBlock));
  run(kernels::magnitude_sums, {x, added, sums.data(), kSumBlock}, n, kSumBlock, threads);
  return n == 0 ? 0.0f : sum_as_tree(sums) / float(n);
}
#endif

}  // namespace gradwire
