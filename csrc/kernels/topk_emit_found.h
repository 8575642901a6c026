// The last pass of top-k over what the first one collected: [begin, end) are positions in that list.
#pragma once

#include "kernels/topk_emit.h"

namespace gradwire::GRADWIRE_TARGET {

// The places of what is kept move to the front of their list.
GRADWIRE_INLINE void emit_found_step(const TopkEmitFound& k, std::int64_t i, int count, Kept& kept) {
  std::uint32_t* const front = k.places + kept.count;
  const U32 places = load_u32(k.places + i);
  store_front(front, places, emit_chosen(k, load(k.x + i, count), places, count, kept));
}

void topk_emit_found(const TopkEmitFound& args, std::int64_t begin, std::int64_t end) {
  const TopkEmitFound k = args;
  Kept kept = {0, k.ties};
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) emit_found_step(k, i, kLanes, kept);
  if (i < end) emit_found_step(k, i, int(end - i), kept);
}

}  // namespace gradwire::GRADWIRE_TARGET
