// Arguments of: signs, with and without scales, and their momentum.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

// Of |x|, or of |x + residual| where there is one: a sum for each block.
struct MagnitudeSums {
  const float* x;
  const float* residual;
  float* sums;
  std::int64_t block;
};

struct SignEncode {
  const float* x;
  std::uint8_t* codes;
};

struct SignEncodeFeedback : Feedback {
  std::uint8_t* codes;
};

struct SignAddDecoded {
  Rows codes;
  float* out;
  float scale;
};

struct SignVote {
  float* mean;
  float tie;
};

// `status` may be null; otherwise the old momentum goes to `grad` and a new one that is not finite sets the status.
struct MomentumUpdate {
  float* grad;
  float* momentum;
  std::int32_t* status;
  float beta, rest;
};

// `status` may be null; otherwise a quotient that is not finite sets it.
struct Precondition {
  float* grad;
  const float* scale;
  std::int32_t* status;
};

// `unit` is a power of two and `inverse` one over it; no scale becomes smaller than `least`. Where `still` scales stay.
struct PreconditionUpdate {
  float* out;
  float* scale;
  float beta, rest, unit, inverse, least;
  bool still;
};

struct SignumEncode : MomentumUpdate {
  std::uint8_t* codes;
};

// Signs by blocks: `levels` are one number for each block (a scale), or two (the mean below zero, then the other).
struct BlockSigns {
  float* levels;
  std::uint8_t* codes;
  std::int64_t block;
};

struct BlockSignEncode : BlockSigns {
  const float* x;
};

struct BlockSignEncodeFeedback : Feedback, BlockSigns {};

struct BlockSignAddDecoded {
  Rows levels, codes;
  float* out;
  std::int64_t block;
  float scale;
};

}  // namespace gradwire
