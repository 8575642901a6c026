// The length of each block.
#pragma once

#include "kernels/norms.h"

namespace gradwire::GRADWIRE_TARGET {

void block_norms(const BlockNorms& args, std::int64_t begin, std::int64_t end) {
  const BlockNorms k = args;
  for (std::int64_t i = begin; i < end; i += k.block) {
    Magnitude m = {set_u32(0), set(0.0f)};
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    measure(k.x + i, count, true, m);
    k.norms[i / k.block] = norm_of(m, true, k.x + i, count);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
