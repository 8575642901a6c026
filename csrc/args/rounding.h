// Arguments of: random rounding, ternary runs, and rotations.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

// Bytes of a block lie in `stream` from block * ceil(block / 5) on, `lengths` of them.
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
struct Philox {
  std::uint32_t* out;
  std::uint64_t key, step, offset;
};

struct Qsgd {
  float* norms;
  std::uint8_t* codes;
  int bits;
  std::int64_t block;
  bool l2;
  std::uint64_t key, step;
  float top;     // the highest level
  bool powers;   // levels stand for powers of two
  float shrink;  // what is decoded is multiplied by this, and so is what is subtracted from the residual
};

struct QsgdEncode : Qsgd {
  const float* x;
};

struct QsgdEncodeFeedback : Feedback, Qsgd {};

struct QsgdAddDecoded {
  Rows norms;
  Rows codes;
  float* out;
  int bits;
  std::int64_t block;
  float scale;
  float top;
  bool powers;
};

// Levels of whole ranks, added up in bytes: `bias` stands for zero.
struct SumsAddDecoded {
  const std::uint8_t* sums;
  float* out;
  std::int32_t bias;
  float step;
};

// One norm for the whole tensor, known before: norms[0].
struct RoundEncode : Qsgd {
  const float* x;
};

struct RoundKeep : Qsgd {
  float* residual;
};

// For each segment of kMomentSegment elements four numbers: the largest magnitude, the origin (the first element if
// `centred`, else 0), the sum of the distances from it, and the sum of their squares.
constexpr std::int64_t kMomentSegment = 4096;

struct Moments {
  const float* x;
  float* table;
  bool centred;
};

struct MomentsFeedback : Feedback {
  float* table;
  bool centred;
};

}  // namespace gradwire
