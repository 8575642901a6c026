// Adds the mean that summed THC codes stand for: each block is rotated back while it is in the cache.
#pragma once

#include "kernels/thc_rotation.h"

namespace gradwire::GRADWIRE_TARGET {

void thc_add_decoded(const ThcAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const ThcAddDecoded k = args;
  alignas(64) float y[kLongestRotation];
  Signs signs;
  const PhiloxStream common = signs_stream(k.seed);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    const int size = padded(count);
    const float inverse = 1.0f / __builtin_sqrtf(float(size));
    const F32 unit = set(k.norms[i / k.block] * (k.clip * inverse)), step = set(k.step), one = set(1.0f);
    for (int j = 0; j < size; j += kLanes)
      store(y + j, (from_i32(load_u8(k.codes + i + j)) * step - one) * unit);
    hadamard(y, size);
    draw_signs(signs, common, i, size);
    const F32 factor = set(k.scale * inverse);
    for (int j = 0; j < count; j += kLanes) {
      const int left = count - j < kLanes ? int(count - j) : kLanes;
      store(k.out + i + j, load(k.out + i + j, left) + factor * with_signs(load(y + j), signs, j), left);
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
