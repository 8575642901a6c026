// Levels of a tensor whose norm is known: the second of two passes.
#pragma once

#include "kernels/qsgd_block.h"

namespace gradwire::GRADWIRE_TARGET {

void round_encode(const RoundEncode& args, std::int64_t begin, std::int64_t end) {
  const RoundEncode k = args;
  RandomTiles random = {philox_stream(k.key, k.step), begin, {-1, -1}, {}};
  write_codes<false, false>(k, random, k.x + begin, nullptr, begin, end - begin, k.norms[0]);
}

}  // namespace gradwire::GRADWIRE_TARGET
