// Arguments of: what is kept to make or divide a gradient, and mean magnitudes.
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

}  // namespace gradwire
