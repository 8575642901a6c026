// EDEN codes: each block is rotated twice, measured and rounded while it is in the cache.
#pragma once

#include "kernels/eden_blocks.h"

namespace gradwire::GRADWIRE_TARGET {

// y = H E H D x / unit
GRADWIRE_INLINE void eden_rotate(float* y, const float* x, const EdenBlock& b, float inverse, const EdenSigns& s) {
  const F32 factor = set(inverse);
  for (int i = 0; i < b.size; i += kLanes) {
    const std::int64_t left = b.count - i;
    const F32 part = left >= kLanes ? load(x + i) : left > 0 ? load(x + i, int(left)) : set(0.0f);
    store(y + i, with_signs(part * factor, s.first, i));
  }
  hadamard(y, b.size);
  turn_signs(y, s.second, b.size);
  hadamard(y, b.size);
}

template <int kBits>
GRADWIRE_INLINE void store_eden(std::uint8_t* codes, U32 level, Mask negative) {
  if constexpr (kBits == 1) {
    const std::uint16_t word = bits(negative);
    std::memcpy(codes, &word, sizeof word);
  } else {
    store_levels<kBits>(codes, level | select(negative, set_u32(1u << (kBits - 1)), set_u32(0)));
  }
}

GRADWIRE_INLINE float sum_of_squares(const float* y, int count) {
  F32 squares = set(0.0f);
  for (int i = 0; i < count; i += kLanes) squares = squares + load(y + i) * load(y + i);
  return sum_of_lanes(squares);
}

GRADWIRE_INLINE float eden_scale(float squares, float product, int count) {
  return product > 0.0f ? squares / product / float(count) : 0.0f;
}

// Writes the codes and returns the scale in units of the block.
template <int kBits>
static float eden_round(std::uint8_t* codes, const float* y, int count, const Eden& k) {
  F32 products = set(0.0f);
  const float sum = sum_of_squares(y, count), root = __builtin_sqrtf(sum / float(count));
  constexpr int kAbove = (1 << (kBits - 1)) - 1;
  F32 limits[kAbove + 1];
  for (int j = 0; j < kAbove; ++j) limits[j] = set(root * k.thresholds[j]);
  float room[16];
  const Table16 values = eden_values(k, room);
  for (int i = 0; i < count; i += kLanes, codes += 2 * kBits) {
    const F32 x = load(y + i), size = as_f32(abs_bits(x));
    U32 level = set_u32(0);
    for (int j = 0; j < kAbove; ++j) level = level + select(ge(size, limits[j]), set_u32(1), set_u32(0));
    products = products + size * lookup(values, level);
    store_eden<kBits>(codes, level, lt(x, set(0.0f)));
  }
  return eden_scale(sum, sum_of_lanes(products), count);
}

// The word with the largest product with a group of 16 * kVectors coordinates, the first of equals; its product, too.
template <int kVectors>
GRADWIRE_INLINE std::uint8_t nearest_word(const float* y, const std::uint16_t* words, float& product) {
  constexpr int kGroup = kVectors * kLanes;
  F32 largest[kVectors], values[kVectors];
  U32 forms[kVectors];
  for (int v = 0; v < kVectors; ++v) largest[v] = set(-1.0f), values[v] = set(0.0f), forms[v] = set_u32(0);
  for (int first = 0; first < kEdenWords; first += kGroup) {
    F32 x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = turned(load(y + v * kLanes), words[first * kVectors + v]);
    for (int half = kVectors / 2; half > 0; half /= 2)
      for (int v = 0; v < kVectors; ++v)
        if (!(v & half)) {
          const F32 a = x[v], b = x[v + half];
          x[v] = a + b, x[v + half] = a - b;
        }
    for (int v = 0; v < kVectors; ++v) {
      x[v] = hadamard16(x[v]);
      const F32 size = as_f32(abs_bits(x[v]));
      const Mask better = gt(size, largest[v]);
      largest[v] = select(better, size, largest[v]), values[v] = select(better, x[v], values[v]);
      forms[v] = select(better, set_u32(std::uint32_t(first)), forms[v]);
    }
  }
  float sizes[kGroup], signedly[kGroup];
  std::uint32_t found[kGroup];
  for (int v = 0; v < kVectors; ++v) {
    store(sizes + v * kLanes, largest[v]), store(signedly + v * kLanes, values[v]);
    store_u32(found + v * kLanes, forms[v] + iota() + set_u32(std::uint32_t(v * kLanes)));
  }
  int best = 0;
  for (int i = 1; i < kGroup; ++i)
    if (sizes[i] > sizes[best] || (sizes[i] == sizes[best] && found[i] < found[best])) best = i;
  product = sizes[best];
  return std::uint8_t(found[best] | (signedly[best] < 0.0f ? kEdenWords : 0));
}

// The same as eden_round for codes of groups.
template <int kVectors>
static float eden_match(std::uint8_t* codes, const float* y, int count, const Eden& k) {
  constexpr int kGroup = kVectors * kLanes;
  float products[kLongestRotation / kGroup + kLanes];
  const int groups = count / kGroup;
  for (int i = 0; i < groups; ++i) codes[i] = nearest_word<kVectors>(y + i * kGroup, k.words, products[i]);
  F32 sums = set(0.0f);
  for (int i = 0; i < groups; i += kLanes)
    sums = sums + load(products + i, groups - i < kLanes ? groups - i : kLanes);
  return eden_scale(sum_of_squares(y, count), sum_of_lanes(sums), count);
}

GRADWIRE_INLINE std::uint32_t largest_bits(const float* x, std::int64_t count) {
  U32 largest = set_u32(0);
  std::int64_t i = 0;
  for (; count - i >= kLanes; i += kLanes) watch(largest, load_ahead(x + i, kLanes));
  if (i < count) watch(largest, load(x + i, int(count - i)));
  return reduce_max(largest);
}

void eden_encode(const EdenEncode& args, std::int64_t begin, std::int64_t end) {
  const EdenEncode k = args;
  alignas(64) float y[kLongestRotation];
  EdenSigns signs = eden_signs(k);
  constexpr decltype(&eden_round<1>) single[] = {nullptr, eden_round<1>, eden_round<2>, eden_round<3>, eden_round<4>};
  const auto round = k.group == 1    ? single[k.bits]
                     : k.group == 16 ? eden_match<1>
                     : k.group == 32 ? eden_match<2>
                                     : eden_match<4>;
  each_eden_block(k, begin, end, [&](const EdenBlock& b) {
    std::uint8_t* const codes = k.codes + eden_bytes(k, b.code);
    const std::uint32_t word = largest_bits(k.x + b.begin, b.count);
    float largest;
    std::memcpy(&largest, &word, sizeof largest);
    if (!(largest >= 0x1p-120f && usable(largest))) {
      k.scales[b.scale] = largest < 0x1p-120f ? 0.0f : __builtin_nanf("");
      std::memset(codes, 0, std::size_t(eden_bytes(k, b.kept)));
      return;
    }
    const int exponent = exponent_of(word);
    draw_signs(signs, b);
    eden_rotate(y, k.x + b.begin, b, power_of_two(-exponent), signs);
    // The words of a group are rows of its Hadamard matrix, so to look for the best one is to undo a part of the second
    // rotation. Signs in between keep what the rotations are for: no coordinate stands out because of the tensor.
    if (k.group != 1) turn_signs(y, signs.first, b.kept);
    k.scales[b.scale] = round(codes, y, b.kept, k) * power_of_two(exponent);
  });
}

}  // namespace gradwire::GRADWIRE_TARGET
