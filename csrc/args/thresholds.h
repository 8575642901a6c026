// Arguments of: what exceeds a threshold.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

// What exceeds a threshold in a range of whole segments.
struct ThresholdScan : Feedback {  // without feedback grad and residual are null
  const float* x;                  // with feedback the residual
  std::uint32_t least;             // magnitudes above it are sent, as bits without the sign
  float level;                     // where it is not 0: magnitudes from d * level on are sent instead
  std::uint8_t* bitmap;
  std::int32_t* counts;            // of each segment
};

}  // namespace gradwire
