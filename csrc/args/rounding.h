// Arguments of: norms of blocks, random numbers, and rotations.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

struct BlockNorms {
  const float* x;
  float* norms;
  std::int64_t block;
};

// `codes` are a byte for each coordinate; the last block is padded to a power of two.
struct ThcEncode {
  const float* x;
  const float* norms;
  const std::int64_t* seed;  // of the signs: key and step
  std::uint8_t* codes;
  std::int64_t block;
  float levels, factor;  // factor: levels / (2 clip)
  std::uint64_t key, step;
};

struct ThcAddDecoded {
  const float* norms;
  const std::int64_t* seed;
  const std::uint8_t* codes;
  float* out;
  std::int64_t block;
  float step;  // 2 / (levels * ranks)
  float clip, scale;
};

// `codes` have `bits` bits for each `group` of the coordinates that are sent, `sent` of a whole block.
struct Eden {
  const std::int32_t* seed;  // of the signs
  std::int64_t block, sent;
  int bits, group;
  const float* values;         // 2^bits of them: what the codes of single coordinates stand for
  const float* thresholds;     // 2^(bits - 1) - 1: the magnitudes from which on the next value is nearer
  const std::uint16_t* words;  // group / 16 for each of 128 codes of groups: the minus signs of what they stand for
};

struct EdenEncode : Eden {
  const float* x;
  float* scales;
  std::uint8_t* codes;
};

struct EdenAddDecoded : Eden {
  const float* scales;
  const std::uint8_t* codes;
  float* out;
  float scale;
};

// The words of the counters from `offset` on; see kernels/philox_words.h.
}  // namespace gradwire
