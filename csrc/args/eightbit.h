// Arguments of: codes of eight bits, and tagged floats.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

// The largest magnitude, as bits without the sign, joins what is at `out`.
struct Largest {
  const float* x;
  std::uint32_t* out;
};

struct LargestSum {
  const float *grad, *residual;
  std::uint32_t* out;
};

enum class Codebook : int { linear, dynamic, e4m3, e5m2 };

// `book` holds the 256 values of the codes, and what the encoder of "dynamic" needs. A block of 0 is the whole tensor,
// whose scale is there already.
struct Eightbit {
  float* scales;
  std::uint8_t* codes;
  const float* book;
  Codebook kind;
  std::int64_t block;
};

struct EightbitEncode : Eightbit {
  const float* x;
};

struct EightbitEncodeFeedback : Feedback, Eightbit {};

struct EightbitAddDecoded {
  Rows scales;
  Rows codes;
  float* out;
  const float* book;
  Codebook kind;
  std::int64_t block;
  float scale;
};

constexpr std::int64_t kBuckets = 256;

// What each code adds, kBuckets for a rank, one rank after the other.
struct AddBuckets {
  Rows codes;
  const float* addends;
  float* out;
};

// One range of a tagged stream; see gradwire/ops/_inceptionn.py. `bytes` receives how many its codes take.
struct InceptionnTags {
  const float* x;
  std::uint8_t* tags;
  int bound;
  std::int64_t* bytes;
  Feedback feedback;  // without one its residual is null; with one, that becomes x
};

// The codes of a range begin at `codes` and end before `end`.
struct InceptionnCodes {
  const float* x;
  const std::uint8_t* tags;
  std::uint8_t *codes, *end;
  int bound;
  float* left;  // x itself, to be what the codes do not say, or null
};

struct InceptionnSizes {
  const std::uint8_t* tags;
  std::int64_t* bytes;
};

// Without tags every code is a float32.
struct InceptionnStream {
  const std::uint8_t *tags, *codes, *end;
};

// `places`: where the codes of the range begin in each stream; they move on.
struct InceptionnAddDecoded {
  const InceptionnStream* streams;
  const std::uint8_t** places;
  std::int64_t ranks;
  float* out;
  int bound;
  float scale;
};

}  // namespace gradwire
