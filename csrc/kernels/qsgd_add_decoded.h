// Adds the QSGD payloads of all ranks, one after the other, to a part of the sum that stays in the L1 cache.
#pragma once

#include "kernels/qsgd_codes.h"

namespace gradwire::GRADWIRE_TARGET {

template <int kBits>
GRADWIRE_INLINE void add_levels_step(float* out, const std::uint8_t* codes, F32 step, int bits, int count) {
  store(out, load(out, count) + step * from_i32(load_levels<kBits>(codes, bits, count)), count);
}

template <int kBits>
static void add_levels(float* out, const std::uint8_t* codes, float step, int bits, std::int64_t count) {
  const F32 s = set(step);
  std::int64_t i = 0;
  for (; count - i >= kLanes; i += kLanes, codes += 2 * bits) add_levels_step<kBits>(out + i, codes, s, bits, kLanes);
  if (i < count) add_levels_step<kBits>(out + i, codes, s, bits, int(count - i));
}

static void qsgd_add_decoded(const QsgdAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const QsgdAddDecoded k = args;
  constexpr std::int64_t kTile = 2048;
  const float top = float((1 << (k.bits - 1)) - 1);
  const auto add = k.bits == 8   ? add_levels<8>
                   : k.bits == 4 ? add_levels<4>
                   : k.bits == 2 ? add_levels<2>
                                 : add_levels<0>;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block_end = (i / k.block + 1) * k.block, tile_end = i + kTile;
    std::int64_t next = block_end < tile_end ? block_end : tile_end;
    if (next > end) next = end;
    for (std::int64_t w = 0; w < k.codes.count; ++w) {
      float norm;
      std::memcpy(&norm, k.norms.data + w * k.norms.stride + i / k.block * std::int64_t(sizeof norm), sizeof norm);
      add(k.out + i, k.codes.data + w * k.codes.stride + i / 8 * k.bits, k.scale * (norm / top), k.bits, next - i);
    }
    i = next;
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
