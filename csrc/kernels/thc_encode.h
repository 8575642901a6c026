// THC codes: each block is rotated and rounded to the levels of the common norm while it is in the cache.
#pragma once

#include "kernels/norms.h"
#include "kernels/thc_rotation.h"

namespace gradwire::GRADWIRE_TARGET {

// Beyond the last element there are zeros.
GRADWIRE_INLINE void rotate(float* y, const float* x, std::int64_t count, int size, const Signs& signs) {
  int i = 0;
  for (; count - i >= kLanes; i += kLanes) store(y + i, with_signs(load_ahead(x + i, kLanes), signs, i));
  for (; i < size; i += kLanes) {
    const int left = count > i ? int(count - i) : 0;
    store(y + i, left ? with_signs(load(x + i, left), signs, i) : set(0.0f));
  }
  hadamard(y, size);
}

// min(floor(min(max(y * factor + levels / 2, 0), levels) + (u + 0.5) / 2^16), levels)
GRADWIRE_INLINE void round_coordinates(std::uint8_t* codes, const float* y, const std::uint32_t* random, int size,
                                       float factor, float levels) {
  const F32 top = set(levels), middle = set(0.5f * levels), f = set(factor), zero = set(0.0f);
  for (int i = 0; i < size; i += kLanes) {
    const F32 place = load(y + i) * f + middle;
    const F32 inside = min(select(gt(place, zero), place, zero), top);
    const F32 shifted = mul_add_exact(from_i32(load_u16(random + i / 2)) + set(0.5f), set(0x1p-16f), inside);
    store_u8(codes + i, to_i32(min(shifted, top)));
  }
}

void thc_encode(const ThcEncode& args, std::int64_t begin, std::int64_t end) {
  const ThcEncode k = args;
  alignas(64) float y[kLongestRotation];
  std::uint32_t random[kLongestRotation / 2 + kPhiloxWords];
  Signs signs;
  const PhiloxStream common = signs_stream(k.seed), own = philox_stream(k.key, k.step);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    const int size = padded(count);
    const float norm = k.norms[i / k.block];
    if (!usable(norm)) {
      std::memset(k.codes + i, 0, std::size_t(size));
      continue;
    }
    draw_signs(signs, common, i, size);
    rotate(y, k.x + i, count, size, signs);
    philox_words(random, std::uint64_t(i) / 8, (size / 2 + kPhiloxWords - 1) / kPhiloxWords, own);
    round_coordinates(k.codes + i, y, random, size, k.factor / norm, k.levels);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
