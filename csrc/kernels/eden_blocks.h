// EDEN: which blocks a tensor has, and their two rotations.
#pragma once

#include "kernels/norms.h"
#include "kernels/qsgd_codes.h"
#include "kernels/thc_rotation.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kEdenSmallest = 64, kEdenSpare = 128;

struct EdenBlock {
  std::int64_t begin, count;  // elements
  int size, kept;             // coordinates, and how many of them are sent
  std::int64_t scale, code;   // indices of its scale and of its first coordinate's code
};

struct EdenSigns {
  PhiloxStream streams[2];
  Signs first, second;
};

GRADWIRE_INLINE EdenSigns eden_signs(const Eden& k) {
  EdenSigns s;
  for (std::uint64_t i = 0; i < 2; ++i) s.streams[i] = philox_stream(std::uint32_t(*k.seed), i);
  return s;
}

GRADWIRE_INLINE void draw_signs(EdenSigns& s, const EdenBlock& b) {
  draw_signs(s.first, s.streams[0], b.begin, b.size);
  draw_signs(s.second, s.streams[1], b.begin, b.size);
}

GRADWIRE_INLINE void turn_signs(float* y, const Signs& s, int size) {
  for (int i = 0; i < size; i += kLanes) store(y + i, with_signs(load(y + i), s, i));
}

GRADWIRE_INLINE std::int64_t eden_kept(const Eden& k, std::int64_t size) {
  const std::int64_t step = k.group < kLanes ? kLanes : k.group, whole = k.block * step;
  return (size * k.sent + whole - 1) / whole * step;
}

// Of `rest` elements behind the whole blocks: the size of the first block that they are cut into.
GRADWIRE_INLINE std::int64_t eden_size(std::int64_t rest) {
  std::int64_t padded = kEdenSmallest;
  while (padded < rest) padded *= 2;
  return padded - rest <= kEdenSpare ? padded : padded / 2;
}

// Calls visit(block) for every block of [begin, end), which starts at a whole one.
template <class Visit>
GRADWIRE_INLINE void each_eden_block(const Eden& k, std::int64_t begin, std::int64_t end, const Visit& visit) {
  EdenBlock b = {begin, k.block, int(k.block), int(k.sent), begin / k.block, begin / k.block * k.sent};
  while (b.begin < end) {
    const std::int64_t rest = end - b.begin;
    const std::int64_t size = rest < k.block ? eden_size(rest) : k.block;
    b.count = rest < size ? rest : size, b.size = int(size), b.kept = int(eden_kept(k, size));
    visit(b);
    b.begin += b.count, b.scale += 1, b.code += b.kept;
  }
}

// Of so many coordinates, a multiple of 16 and of the group.
GRADWIRE_INLINE std::int64_t eden_bytes(const Eden& k, std::int64_t coordinates) {
  return coordinates * k.bits / (8 * k.group);
}

// x with the signs of `word` for 16 coordinates.
GRADWIRE_INLINE F32 turned(F32 x, std::uint16_t word) {
  return as_f32(as_u32(x) ^ select(mask_of(word), set_u32(0x80000000), set_u32(0)));
}

constexpr int kEdenWords = 128;  // without the sign of the whole

GRADWIRE_INLINE Table16 eden_values(const Eden& k, float* room) {
  for (int i = 0; i < 16; ++i) room[i] = k.values[i & ((1 << k.bits) - 1)];
  return table16(room);
}

}  // namespace gradwire::GRADWIRE_TARGET
