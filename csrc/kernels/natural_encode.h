// Powers of two, one pass over memory: each block is measured and rounded while it is in the L1 cache.
#pragma once

#include "kernels/natural_block.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE std::uint32_t natural_measure(const float* x, std::int64_t count) {
  U32 worst = set_u32(0);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) watch(worst, load(x + i, kLanes));
  if (i < count) watch(worst, load(x + i, int(count - i)));
  return natural_base(worst);
}

void natural_encode(const NaturalEncode& args, std::int64_t begin, std::int64_t end) {
  const NaturalEncode k = args;
  NaturalWords words = natural_words(k);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    const std::uint32_t base = natural_measure(k.x + i, count);
    natural_block<false>(k, words, {k.x + i, nullptr, k.codes + i, block_ahead(count)}, i, count, base);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
