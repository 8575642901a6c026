// The largest magnitude of a tensor: that of a NaN is larger than infinity.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// Four at a time, since each maximum waits for the one before.
constexpr int kWatches = 4;

GRADWIRE_INLINE void join_largest(std::uint32_t* out, std::uint32_t found) {
  std::uint32_t known = __atomic_load_n(out, __ATOMIC_RELAXED);
  while (found > known && !__atomic_compare_exchange_n(out, &known, found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// The largest magnitude of take(i, number of lanes) for i in steps of 16 over a range.
template <class Take>
GRADWIRE_INLINE std::uint32_t largest_of(std::int64_t begin, std::int64_t end, const Take& take) {
  U32 worst[kWatches] = {set_u32(0), set_u32(0), set_u32(0), set_u32(0)};
  std::int64_t i = begin;
  for (; end - i >= kWatches * kLanes; i += kWatches * kLanes)
    for (int j = 0; j < kWatches; ++j) watch(worst[j], take(i + j * kLanes, kLanes));
  for (; end - i >= kLanes; i += kLanes) watch(worst[0], take(i, kLanes));
  if (i < end) watch(worst[0], take(i, int(end - i)));
  return reduce_max(max_u32(max_u32(worst[0], worst[1]), max_u32(worst[2], worst[3])));
}

void largest(const Largest& args, std::int64_t begin, std::int64_t end) {
  const float* const x = args.x;
  join_largest(args.out, largest_of(begin, end, [x](std::int64_t i, int count) GRADWIRE_LAMBDA {
    return load_ahead(x + i, count);
  }));
}

}  // namespace gradwire::GRADWIRE_TARGET
