// 8-bit codes with a scale for each block, one pass over memory; a tensor of one scale has been measured before.
#pragma once

#include "kernels/eightbit_block.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE float eightbit_measure(const float* x, std::int64_t count) {
  U32 worst = set_u32(0);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) watch(worst, load(x + i, kLanes));
  if (i < count) watch(worst, load(x + i, int(count - i)));
  return eightbit_norm(worst);
}

void eightbit_encode(const EightbitEncode& args, std::int64_t begin, std::int64_t end) {
  const EightbitEncode k = args;
  const std::int64_t size = k.block ? k.block : kEightbitTile;
  for (std::int64_t i = begin; i < end; i += size) {
    const std::int64_t count = end - i < size ? end - i : size;
    const float norm = k.block ? eightbit_measure(k.x + i, count) : k.scales[0];
    if (k.block) k.scales[i / size] = norm;
    eightbit_run<false>(k.kind, {k.x + i, nullptr, k.codes + i, count}, k.book, norm);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
