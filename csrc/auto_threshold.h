// The threshold that lets a wanted share of the elements fire: ops/auto_threshold.py says how it is chosen.
#pragma once

#include <cstdint>

namespace gradwire {

struct AutoThreshold {
  const float* x;
  const float* residual;  // or null
  std::int64_t share;     // how many elements of the sample are to fire
  float* threshold;
  float* level;
  float* advice;        // the sum of wishes, and of their weights
  const float* agreed;  // the same of all ranks
  std::int64_t* turn;
};

void auto_threshold(const AutoThreshold& a, std::int64_t n);

}  // namespace gradwire
