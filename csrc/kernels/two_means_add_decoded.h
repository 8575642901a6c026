// Adds the signs of all ranks, each with the rank's own two means of the block. One pass over memory.
#pragma once

#include "kernels/block_signs.h"

namespace gradwire::GRADWIRE_TARGET {

void two_means_add_decoded(const BlockSignAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const BlockSignAddDecoded k = args;
  add_block_signs(k, begin, end, [&](const std::uint8_t* row, std::int64_t block) {
    float means[2];
    std::memcpy(means, row + block * std::int64_t(sizeof means), sizeof means);
    return Levels{k.scale * means[0], k.scale * means[1]};
  });
}

}  // namespace gradwire::GRADWIRE_TARGET
