// The norm of a block: its largest magnitude or its length.
#pragma once

#include "kernels/lane_sums.h"
#include "kernels/units.h"

namespace gradwire::GRADWIRE_TARGET {

// What the norm is made of: the largest magnitude, or the squares added up in 16 lanes.
struct Magnitude {
  U32 largest;
  F32 squares;
};

GRADWIRE_INLINE void measure(Magnitude& m, F32 x, bool l2) {
  if (l2)
    m.squares = m.squares + x * x;
  else
    watch(m.largest, x);
}

// The length of a block whose squares vanish or overflow: in units of the power of two below its largest element.
static float scaled_length(const float* x, std::int64_t count) {
  U32 largest = set_u32(0);
  std::int64_t i = 0;
  for (; count - i >= kLanes; i += kLanes) watch(largest, load(x + i));
  if (i < count) watch(largest, load(x + i, int(count - i)));
  const int exponent = exponent_of(reduce_max(largest));
  const F32 unit = set(power_of_two(-exponent));
  F32 squares = set(0.0f);
  for (i = 0; i < count; i += kLanes) {
    const F32 y = load(x + i, int(count - i < kLanes ? count - i : kLanes)) * unit;
    squares = squares + y * y;
  }
  return __builtin_sqrtf(sum_of_lanes(squares)) * power_of_two(exponent);
}

// From here on no square that counts was too small for float32, in a block of up to 65536 elements.
constexpr float kLeastSquares = 0x1p-100f;

GRADWIRE_INLINE float length_of(F32 squares, const float* x, std::int64_t count) {
  const float sum = sum_of_lanes(squares);
  const bool plain = sum >= kLeastSquares && sum <= 0x1.fffffep127f;
  const float length = plain ? __builtin_sqrtf(sum) : scaled_length(x, count);
  return length == length ? length : __builtin_nanf("");
}

// The norm as it is stored: below 2^-120 it counts as zero, since levels / norm must not overflow.
GRADWIRE_INLINE float norm_of(const Magnitude& m, bool l2, const float* x, std::int64_t count) {
  float norm;
  if (l2) {
    norm = length_of(m.squares, x, count);
  } else {
    const std::uint32_t word = reduce_max(m.largest);
    std::memcpy(&norm, &word, sizeof norm);
  }
  return norm < 0x1p-120f ? 0.0f : norm;
}

GRADWIRE_INLINE bool usable(float norm) { return norm > 0.0f && norm <= 0x1.fffffep127f; }

GRADWIRE_INLINE void measure(const float* x, std::int64_t count, bool l2, Magnitude& m) {
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) measure(m, load(x + i), l2);
  if (i < count) measure(m, load(x + i, int(count - i)), l2);
}

}  // namespace gradwire::GRADWIRE_TARGET
