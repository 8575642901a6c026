// The largest magnitude, the sum and the sum of squares of each segment.
#pragma once

#include "kernels/units.h"

namespace gradwire::GRADWIRE_TARGET {

struct Segment {
  U32 largest;
  F32 origin, sum, squares;
};

GRADWIRE_INLINE Segment segment_at(float origin) { return {set_u32(0), set(origin), set(0.0f), set(0.0f)}; }

// Lanes beyond `count` hold zero, which is not at a distance of zero from the origin.
GRADWIRE_INLINE void add_to(Segment& s, F32 x, int count) {
  watch(s.largest, x);
  F32 distance = x - s.origin;
  if (count != kLanes) distance = select(mask_of(bits_of_count(count)), distance, set(0.0f));
  s.sum = s.sum + distance;
  s.squares = s.squares + distance * distance;
}

GRADWIRE_INLINE float sum_of(F32 x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  return lanes[0];
}

// The sums are in units of 2^e: of the exponent of the largest magnitude where squares might vanish or overflow, else 0.
GRADWIRE_INLINE int exponent_of_sums(std::uint32_t largest) {
  constexpr int kUsual = 40;
  const int exponent = exponent_of(largest);
  return exponent >= -kUsual && exponent <= kUsual ? 0 : exponent;
}

static Segment sums_in_units(const float* x, std::int64_t count, float origin, float unit) {
  Segment s = segment_at(origin);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const int lanes = int(count - i < kLanes ? count - i : kLanes);
    F32 distance = (load(x + i, lanes) - s.origin) * set(unit);
    if (lanes != kLanes) distance = select(mask_of(bits_of_count(lanes)), distance, set(0.0f));
    s.sum = s.sum + distance;
    s.squares = s.squares + distance * distance;
  }
  return s;
}

// The row of a segment whose `count` elements are at x.
GRADWIRE_INLINE void write_moments(float* row, const Segment& found, float origin, const float* x, std::int64_t count) {
  const std::uint32_t largest = reduce_max(found.largest);
  const int exponent = exponent_of_sums(largest);
  const Segment s = exponent == 0 ? found : sums_in_units(x, count, origin, power_of_two(-exponent));
  std::memcpy(row, &largest, sizeof largest);
  row[1] = origin, row[2] = sum_of(s.sum), row[3] = sum_of(s.squares);
}

void moments(const Moments& args, std::int64_t begin, std::int64_t end) {
  const Moments k = args;
  for (std::int64_t first = begin; first < end; first += kMomentSegment) {
    const std::int64_t after = end - first < kMomentSegment ? end : first + kMomentSegment;
    const float origin = k.centred ? k.x[first] : 0.0f;
    Segment s = segment_at(origin);
    std::int64_t i = first;
    for (; after - i >= kLanes; i += kLanes) add_to(s, load_ahead(k.x + i, kLanes), kLanes);
    if (i < after) add_to(s, load(k.x + i, int(after - i)), int(after - i));
    write_moments(k.table + first / kMomentSegment * 4, s, origin, k.x + first, after - first);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
