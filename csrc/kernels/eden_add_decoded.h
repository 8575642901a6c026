// Adds what EDEN codes stand for: each block is rotated back while it is in the cache.
#pragma once

#include "kernels/eden_blocks.h"

namespace gradwire::GRADWIRE_TARGET {

template <int kBits>
GRADWIRE_INLINE U32 load_eden(const std::uint8_t* codes) {
  if constexpr (kBits == 1) {
    std::uint16_t word;
    std::memcpy(&word, codes, sizeof word);
    return select(mask_of(word), set_u32(1), set_u32(0));
  } else {
    return load_fields<kBits>(codes) & set_u32((1u << kBits) - 1);
  }
}

template <int kBits>
static void eden_read(float* y, const std::uint8_t* codes, int count, float scale, const Eden& k) {
  float room[16];
  const Table16 values = eden_values(k, room);
  const F32 unit = set(scale);
  for (int i = 0; i < count; i += kLanes, codes += 2 * kBits)
    store(y + i, lookup(values, load_eden<kBits>(codes)) * unit);
}

template <int kVectors>
static void eden_spell(float* y, const std::uint8_t* codes, int count, float scale, const Eden& k) {
  const F32 unit = set(scale);
  for (int i = 0; i < count; i += kVectors * kLanes, ++codes) {
    const std::uint16_t* const word = k.words + *codes % kEdenWords * kVectors;
    const std::uint16_t whole = *codes < kEdenWords ? 0 : 0xffff;
    for (int v = 0; v < kVectors; ++v) store(y + i + v * kLanes, turned(unit, std::uint16_t(word[v] ^ whole)));
  }
}

void eden_add_decoded(const EdenAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const EdenAddDecoded k = args;
  alignas(64) float y[kLongestRotation];
  EdenSigns signs = eden_signs(k);
  constexpr decltype(&eden_read<1>) single[] = {nullptr, eden_read<1>, eden_read<2>, eden_read<3>, eden_read<4>};
  const auto read = k.group == 1    ? single[k.bits]
                    : k.group == 16 ? eden_spell<1>
                    : k.group == 32 ? eden_spell<2>
                                    : eden_spell<4>;
  const F32 factor = set(k.scale);
  each_eden_block(k, begin, end, [&](const EdenBlock& b) {
    read(y, k.codes + eden_bytes(k, b.code), b.kept, k.scales[b.scale] * (1.0f / float(b.size)), k);
    for (int i = b.kept; i < b.size; i += kLanes) store(y + i, set(0.0f));
    draw_signs(signs, b);
    if (k.group != 1) turn_signs(y, signs.first, b.kept);
    hadamard(y, b.size);
    turn_signs(y, signs.second, b.size);
    hadamard(y, b.size);
    float* const out = k.out + b.begin;
    for (int i = 0; i < b.count; i += kLanes) {
      const int left = b.count - i < kLanes ? int(b.count - i) : kLanes;
      store(out + i, load(out + i, left) + factor * with_signs(load(y + i), signs.first, i), left);
    }
  });
}

}  // namespace gradwire::GRADWIRE_TARGET
