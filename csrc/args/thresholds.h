// Arguments of: codes of fixed thresholds: 2 bits, 1 bit, ternary streams, and what exceeds a threshold.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

struct TwobitEncode {
  const float* x;
  std::uint8_t* codes;
  float fire;  // the least magnitude that is sent
};

struct TwobitEncodeFeedback : Feedback {
  std::uint8_t* codes;
  float fire;       // the least magnitude that is sent
  float threshold;  // what is sent
};

struct TwobitAddDecoded {
  Rows codes;
  float* out;
  float step;
};

// The 2-bit code with a level that differs between elements: d * level, d in [1, 2).
struct DitheredEncode {
  const float* x;
  std::uint8_t* codes;
  float level;
};

struct DitheredEncodeFeedback : Feedback {
  std::uint8_t* codes;
  float level;
  float threshold;  // what is sent
};

struct OnebitEncode {
  const float* x;
  std::uint8_t* codes;
  float threshold;
};

struct OnebitEncodeFeedback : Feedback {
  std::uint8_t* codes;
  float threshold, step;
};

// `steps` without data: every rank steps by one.
struct OnebitAddDecoded {
  Rows codes, steps;
  float* out;
  float scale;
};

// What exceeds a threshold in a range of whole segments.
struct ThresholdScan : Feedback {  // without feedback grad and residual are null
  const float* x;                  // with feedback the residual
  std::uint32_t least;             // magnitudes above it are sent, as bits without the sign
  float level;                     // where it is not 0: magnitudes from d * level on are sent instead
  std::uint8_t* bitmap;
  std::int32_t* counts;            // of each segment
};

}  // namespace gradwire
