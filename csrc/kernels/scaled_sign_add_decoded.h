// Adds the signs of all ranks, each with the rank's own scale of the block. One pass over memory.
#pragma once

#include "kernels/block_signs.h"

namespace gradwire::GRADWIRE_TARGET {

void scaled_sign_add_decoded(const BlockSignAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const BlockSignAddDecoded k = args;
  add_block_signs(k, begin, end, [&](const std::uint8_t* row, std::int64_t block) {
    float level;
    std::memcpy(&level, row + block * std::int64_t(sizeof level), sizeof level);
    return Levels{-(k.scale * level), k.scale * level};
  });
}

}  // namespace gradwire::GRADWIRE_TARGET
