// What exceeds a threshold, as one stream of bytes. The forms are those of ops/_threshold.py.
#pragma once

#include "kernels.h"

namespace gradwire {

struct Threshold : Feedback {  // without feedback grad and residual are null
  const float* x;              // with feedback the residual
  float threshold;
  float level;  // where it is not 0, in place of the threshold, times a dither
  std::int32_t* used;
  std::uint8_t* stream;  // 8 + 4 n bytes
};

struct ThresholdAddDecoded {
  Rows streams;
  std::int64_t length;  // of each row
  float* out;
  float scale;
};

void threshold_encode(const Threshold& t, std::int64_t n, int threads);
void threshold_add_decoded(const ThresholdAddDecoded& t, std::int64_t n, int threads);

}  // namespace gradwire
