// Arguments of: casts.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

enum class CastTo : int { float16, bfloat16, float32 };

struct CastEncode {
  const float* x;
  std::uint8_t* out;
  float scale;
  CastTo to;
};

struct CastEncodeFeedback : Feedback {
  std::uint8_t* out;
  CastTo to;
};

struct CastAddDecoded {
  Rows payloads;
  float* out;
  float scale;
  CastTo to;
};

}  // namespace gradwire
