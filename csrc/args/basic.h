// Arguments of the kernels that every method shares.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

struct Triad {
  float* a;
  const float* b;
  const float* c;
  float s;
  bool past_cache;  // a is larger than a cache and aligned to a vector: write it without reading it first
};

struct Nonfinite {
  const float* x;
  std::int32_t* status;
};

struct Swap {
  float* a;
  float* b;
};

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
