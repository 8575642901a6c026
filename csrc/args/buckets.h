// Arguments of: sums of what codes stand for.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

constexpr std::int64_t kBuckets = 256;

// What each code adds, kBuckets for a rank, one rank after the other.
struct AddBuckets {
  Rows codes;
  const float* addends;
  float* out;
};

}  // namespace gradwire
