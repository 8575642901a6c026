// What the arguments of many kernels contain.
#pragma once

#include <cstdint>
#include <cstring>

namespace gradwire {

constexpr std::uint32_t kDither = 0x9e3779b9;  // the golden ratio, in parts of 2^32

// W payloads of equal length, `stride` bytes apart: views into one receive buffer.
struct Rows {
  const std::uint8_t* data;
  std::int64_t count;
  std::int64_t stride;
};

// The factor of payload w from rows of one float each; 1 where there are none.
inline float factor_of(const Rows& factors, std::int64_t w) {
  float factor = 1.0f;
  if (factors.data != nullptr) std::memcpy(&factor, factors.data + w * factors.stride, sizeof factor);
  return factor;
}

// `status` may be null; otherwise the old residual goes to `grad` and a sum that is not finite sets the status.
struct Feedback {
  float* grad;
  float* residual;
  std::int32_t* status;
};

// `status` may be null; otherwise the old momentum goes to `grad` and a new one that is not finite sets the status.
struct MomentumUpdate {
  float* grad;
  float* momentum;
  std::int32_t* status;
  float beta, rest;
};

}  // namespace gradwire
