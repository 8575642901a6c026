// The same in place: what is encoded becomes what its level does not say.
#pragma once

#include "kernels/qsgd_block.h"

namespace gradwire::GRADWIRE_TARGET {

void round_keep(const RoundKeep& args, std::int64_t begin, std::int64_t end) {
  const RoundKeep k = args;
  RandomTiles random = {philox_stream(k.key, k.step), begin, {-1, -1}, {}};
  float* const x = k.residual + begin;
  write_codes<true, false>(k, random, x, x, begin, end - begin, k.norms[0]);
}

}  // namespace gradwire::GRADWIRE_TARGET
