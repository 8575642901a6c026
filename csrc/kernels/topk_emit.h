// The last pass of top-k: writes out what is above the least magnitude to be kept, and the first `ties` that equal it.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

struct Kept {
  std::int64_t count, ties_left;
};

GRADWIRE_INLINE std::uint32_t lowest_bits(std::uint32_t bits, std::int64_t count) {
  while (__builtin_popcount(bits) > count) bits ^= 0x80000000u >> __builtin_clz(bits);
  return bits;
}

GRADWIRE_INLINE Mask choose(const TopkEmit& k, F32 x, int count, Kept& kept) {
  const U32 magnitude = abs_bits(x), least = set_u32(k.least);
  const Mask larger = first_of(gt(magnitude, least), count);
  if (kept.ties_left == 0) return larger;
  const std::uint32_t equal = bits(first_of(eq(magnitude, least), count));
  if (equal == 0) return larger;
  const std::uint32_t taken = lowest_bits(equal, kept.ties_left);
  kept.ties_left -= __builtin_popcount(taken);
  return mask_of(std::uint16_t(bits(larger) | taken));
}

// Writes the chosen of 16 values, of which `count` exist, and their indices.
GRADWIRE_INLINE Mask emit_chosen(const TopkEmit& k, F32 x, U32 index, int count, Kept& kept) {
  const Mask chosen = choose(k, x, count, kept);
  std::uint32_t* const values = reinterpret_cast<std::uint32_t*>(k.values) + kept.count;
  std::uint16_t* const indices = k.indices + kept.count;
  // A bulk store may write 16, and in their places only this thread's values may be written.
  if (kept.count + kLanes <= k.count) {
    store_front_u16(indices, index, chosen);
    kept.count += store_front(values, as_u32(x), chosen);
  } else {
    store_selected_u16(indices, index, chosen);
    kept.count += store_selected(values, as_u32(x), chosen);
  }
  return chosen;
}

GRADWIRE_INLINE void emit_step(const TopkEmit& k, std::int64_t i, int count, Kept& kept) {
  emit_chosen(k, load_ahead(k.x + i, count), set_u32(std::uint32_t(i)) + iota(), count, kept);
}

GRADWIRE_INLINE void emit_segment(const TopkEmit& k, std::int64_t begin, std::int64_t end, Kept& kept) {
  const std::int64_t before = kept.count;
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) emit_step(k, i, kLanes, kept);
  if (i < end) emit_step(k, i, int(end - i), kept);
  k.counts[begin / 65536] = std::int32_t(kept.count - before);
  if (k.residual)
    for (std::int64_t j = before; j < kept.count; ++j) k.residual[begin + k.indices[j]] = 0.0f;
}

// Segment by segment: each has a count, and is still in the L2 cache when its kept elements are set to zero.
void topk_emit(const TopkEmit& args, std::int64_t begin, std::int64_t end) {
  const TopkEmit k = args;
  Kept kept = {0, k.ties};
  for (std::int64_t i = begin; i < end; i += 65536) emit_segment(k, i, end - i < 65536 ? end : i + 65536, kept);
}

}  // namespace gradwire::GRADWIRE_TARGET
