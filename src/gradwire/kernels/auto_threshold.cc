// The threshold that lets a wanted share of the elements fire: kernels/auto_threshold.py says how it is chosen.
#if !defined(GRADWIRE_TARGET)

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "operation.h"

namespace gradwire::operations {

namespace {

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

constexpr std::int64_t kSample = 2048;
constexpr float kLargest = std::numeric_limits<float>::max();

float dither(std::int64_t i) {
  const std::uint32_t word = (std::uint32_t(i) * kDither) >> 9 | 0x3f800000;
  float factor;
  std::memcpy(&factor, &word, sizeof factor);
  return factor;
}

// One place in run j of `count` equal runs, another one in every turn.
std::int64_t sampled_place(std::int64_t n, std::int64_t count, std::int64_t j, std::int64_t turn) {
  const std::int64_t begin = j * n / count, end = (j + 1) * n / count;
  const std::uint32_t fraction = (std::uint32_t(j) * 0x85ebca77 + std::uint32_t(turn) * 0xc2b2ae3d) >> 8;
  return begin + (std::int64_t(fraction) * (end - begin) >> 24);
}

// The value that `share` of the sampled |x| / d reach, or half of those that are not 0.
float reached(const AutoThreshold& a, std::int64_t n) {
  const std::int64_t count = std::min(n, kSample);
  float values[kSample];
  std::int64_t found = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t i = sampled_place(n, count, j, *a.turn);
    const float x = a.residual ? a.residual[i] + a.x[i] : a.x[i], value = std::fabs(x) / dither(i);
    // Without a branch, which the values would make hard to foresee; a NaN is not above 0.
    values[found] = value;
    found += value > 0 && value <= kLargest;
  }
  if (found == 0) return 0;
  const std::int64_t last = std::clamp(found / 2, std::int64_t(1), a.share) - 1;
  std::nth_element(values, values + last, values + found, std::greater<float>());
  return values[last] * (1 - 0x1p-22f);
}

// As Python rounds: half to even.
std::int64_t share_of(std::int64_t n, double target) {
  return std::max(std::int64_t(1), std::int64_t(std::nearbyint(target * double(std::min(n, kSample)))));
}

void choose(const AutoThreshold& a, std::int64_t n) {
  count_call();
  const float own = reached(a, n);
  *a.turn += 1;
  const float known = a.agreed[1] > 0 ? std::min(a.agreed[0] / a.agreed[1], kLargest) : 0.0f;
  const float limited = std::min(std::max(own, known * 0.25f), std::min(known * 4, kLargest));
  const float wish = known > 0 ? (own > 0 ? limited : known) : own;
  if (wish > 0) {
    a.advice[0] = a.advice[0] * 0.75f + wish * 0.25f;
    a.advice[1] = a.advice[1] * 0.75f + 0.25f;
  }
  const float t = known > 0 ? known : own;
  *a.threshold = t;
  *a.level = t > 0 ? std::max(own, t - t * 0.5f) : std::numeric_limits<float>::infinity();
}

void auto_threshold(const float* x, float* threshold, float* level, float* advice, const float* agreed, Size* turn,
                    double target, Maybe<const float> residual, Size n) {
  choose({x, residual.data, share_of(n, target), threshold, level, advice, agreed, turn}, n);
}
GRADWIRE_OPERATION(auto_threshold)

}  // namespace

}  // namespace gradwire::operations

#endif
