// What the arguments of many kernels contain.
#pragma once

#include <cstdint>

namespace gradwire {

// W payloads of equal length, `stride` bytes apart: views into one receive buffer.
struct Rows {
  const std::uint8_t* data;
  std::int64_t count;
  std::int64_t stride;
};

// `status` may be null; otherwise the old residual goes to `grad` and a sum that is not finite sets the status.
struct Feedback {
  float* grad;
  float* residual;
  std::int32_t* status;
};

}  // namespace gradwire
