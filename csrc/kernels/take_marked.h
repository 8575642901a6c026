// Writes the marked elements side by side, and the low 16 bits of their places.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// `room`: the slots from `to` on that belong to this segment. A bulk store writes all 16 of them.
GRADWIRE_INLINE int take_step(const TakeMarked& k, std::int64_t i, std::uint16_t marks, std::int64_t to,
                              std::int64_t room) {
  if (room >= kLanes) {
    const Mask marked = mask_of(marks);
    const F32 x = load(k.x + i);
    if (k.left && marks != 0) store(k.left + i, select(marked, set(0.0f), x));
    if (k.indices) store_front_u16(k.indices + to, set_u32(std::uint32_t(i)) + iota(), marked);
    return store_front(reinterpret_cast<std::uint32_t*>(k.values) + to, as_u32(x), marked);
  }
  int taken = 0;
  for (std::uint32_t rest = marks; rest != 0 && taken < room; rest &= rest - 1, ++taken) {
    const std::int64_t place = i + __builtin_ctz(rest);
    const std::uint16_t low = std::uint16_t(place);
    std::memcpy(k.values + to + taken, k.x + place, sizeof(float));
    if (k.indices) std::memcpy(k.indices + to + taken, &low, sizeof low);
    if (k.left) k.left[place] = 0.0f;
  }
  return taken;
}

// 64 bits of the map, or what is left of it.
GRADWIRE_INLINE std::uint64_t marks_at(const std::uint8_t* bitmap, std::int64_t i, std::int64_t end) {
  std::uint64_t word = 0;
  if (end - i >= 64) {
    std::memcpy(&word, bitmap + i / 8, 8);
    return word;
  }
  std::memcpy(&word, bitmap + i / 8, std::size_t((end - i + 7) / 8));
  return word & ((std::uint64_t(1) << (end - i)) - 1);
}

// The marked ones of 64 elements; returns how many.
GRADWIRE_INLINE std::int64_t take_word(const TakeMarked& k, std::int64_t i, std::uint64_t word, std::int64_t stop,
                                       std::int64_t to, std::int64_t after) {
  const std::int64_t start = to;
  if (word == 0) return 0;
  // Where it makes no difference how many there are, no branch asks.
  if (stop - i >= 64 && after - to >= 64) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part)
      to += take_step(k, i + part * kLanes, std::uint16_t(word >> 16 * part), to, kLanes);
    return to - start;
  }
  for (std::int64_t j = i; word != 0; j += kLanes, word >>= kLanes) {
    // Of fewer than 16 elements at the end of a tensor 16 cannot be loaded.
    const std::int64_t most = stop - j >= kLanes ? kMarkSegment : kLanes - 1;
    to += take_step(k, j, std::uint16_t(word), to, after - to < most ? after - to : most);
  }
  return to - start;
}

void take_marked(const TakeMarked& args, std::int64_t begin, std::int64_t end) {
  const TakeMarked k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment;
    std::int64_t to = k.starts[first / kMarkSegment];
    const std::int64_t after = k.starts[first / kMarkSegment + 1];
    for (std::int64_t i = first; i < stop; i += 64)
      to += take_word(k, i, marks_at(k.bitmap, i, stop), stop, to, after);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
