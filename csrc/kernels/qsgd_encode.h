// QSGD codes, one pass over memory: each block is measured and rounded while it is in the L1 cache.
#pragma once

#include "kernels/qsgd_block.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void qsgd_measure(const float* x, std::int64_t count, bool l2, Magnitude& m) {
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) measure(m, load(x + i), l2);
  if (i < count) measure(m, load(x + i, int(count - i)), l2);
}

void qsgd_encode(const QsgdEncode& args, std::int64_t begin, std::int64_t end) {
  const QsgdEncode k = args;
  RandomTiles random = {philox_stream(k.key, k.step), begin, {-1, -1}, {}};
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    Magnitude m = {set_u32(0), set(0.0f)};
    if (k.l2)
      qsgd_measure(k.x + i, count, true, m);
    else
      qsgd_measure(k.x + i, count, false, m);
    write_block<false>(k, random, k.x + i, nullptr, i, count, norm_of(m, k.l2, k.x + i, count));
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
