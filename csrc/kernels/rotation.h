// The rotation of a block in the L1 or L2 cache: its random signs, and its Hadamard transform, pairs at distance n / 2
// first, neighbours last.
#pragma once

#include "kernels/philox_words.h"
#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kLongestRotation = 16384;

template <int kDistance>
GRADWIRE_INLINE F32 butterfly(F32 x) {
  const U32 distance = set_u32(kDistance);
  const U32 sign = select(eq(iota() & distance, distance), set_u32(0x80000000), set_u32(0));
  return as_f32(as_u32(x) ^ sign) + swap_lanes<kDistance>(x);
}

GRADWIRE_INLINE F32 hadamard16(F32 x) { return butterfly<1>(butterfly<2>(butterfly<4>(butterfly<8>(x)))); }

// Of 2^kStages vectors that lie `distance` apart: pairs of the most distant first. With kLast those within each too.
template <int kStages, bool kLast>
GRADWIRE_INLINE void stages(float* x, int distance) {
  constexpr int kVectors = 1 << kStages;
  F32 v[kVectors];
GRADWIRE_UNROLL(8)
  for (int i = 0; i < kVectors; ++i) v[i] = load(x + i * distance);
GRADWIRE_UNROLL(3)
  for (int half = kVectors / 2; half > 0; half /= 2)
GRADWIRE_UNROLL(8)
    for (int i = 0; i < kVectors; ++i)
      if (!(i & half)) {
        const F32 a = v[i], b = v[i + half];
        v[i] = a + b, v[i + half] = a - b;
      }
GRADWIRE_UNROLL(8)
  for (int i = 0; i < kVectors; ++i) store(x + i * distance, kLast ? hadamard16(v[i]) : v[i]);
}

// In registers from here on.
template <int kStages>
GRADWIRE_INLINE void last_stages(float* x, int n) {
  for (int i = 0; i < n; i += kLanes << kStages) stages<kStages, true>(x + i, kLanes);
}

// `n` is a power of two, at least 16. Three stages in one pass.
static inline void hadamard(float* x, int n) {
  int size = n;
  for (; size > 8 * kLanes; size /= 8)
    for (int i = 0; i < n; i += size)
      for (int j = i; j < i + size / 8; j += kLanes) stages<3, false>(x + j, size / 8);
  if (size == 8 * kLanes) return last_stages<3>(x, n);
  if (size == 4 * kLanes) return last_stages<2>(x, n);
  if (size == 2 * kLanes) return last_stages<1>(x, n);
  last_stages<0>(x, n);
}

constexpr int kSignBatch = 32 * kPhiloxWords;  // elements: a bit each

struct Signs {
  std::uint32_t words[kLongestRotation / 32 + kPhiloxWords];
  int first;  // bit
};

GRADWIRE_INLINE void draw_signs(Signs& s, const PhiloxStream& stream, std::int64_t begin, int size) {
  s.first = int(begin % kSignBatch);
  philox_words(s.words, std::uint64_t(begin / kSignBatch) * 8, (s.first + size + kSignBatch - 1) / kSignBatch, stream);
}

GRADWIRE_INLINE F32 with_signs(F32 x, const Signs& s, int i) {
  const int bit = s.first + i;
  const Mask negative = mask_of(std::uint16_t(s.words[bit / 32] >> bit % 32));
  return as_f32(as_u32(x) ^ select(negative, set_u32(0x80000000), set_u32(0)));
}

}  // namespace gradwire::GRADWIRE_TARGET
