// The length of each block.
#pragma once

#include "kernels/qsgd_encode.h"

namespace gradwire::GRADWIRE_TARGET {

static void block_norms(const BlockNorms& args, std::int64_t begin, std::int64_t end) {
  const BlockNorms k = args;
  for (std::int64_t i = begin; i < end; i += k.block) {
    Magnitude m = {set_u32(0), set(0.0f)};
    qsgd_measure(k.x + i, end - i < k.block ? end - i : k.block, true, m);
    k.norms[i / k.block] = norm_of(m, true);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
