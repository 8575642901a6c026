// 3LC codes, block by block; csrc/module.cc then moves the blocks together.
#pragma once

#include "kernels/three_lc_codes.h"

namespace gradwire::GRADWIRE_TARGET {

void three_lc_encode(const ThreeLcEncode& args, std::int64_t begin, std::int64_t end) {
  const ThreeLcEncode k = args;
  for (std::int64_t first = begin; first < end; first += k.block) {
    const std::int64_t count = end - first < k.block ? end - first : k.block;
    U32 largest = set_u32(0);
    std::int64_t i = 0;
    for (; count - i >= kLanes; i += kLanes) watch(largest, load(k.x + first + i, kLanes));
    if (i < count) watch(largest, load(k.x + first + i, int(count - i)));
    write_ternary_block<false>(k, k.x + first, nullptr, first, count, scale_of(largest, k.sparsity));
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
