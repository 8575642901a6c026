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

struct CastEncode {
  const float* x;
  std::uint8_t* out;
  float scale;
  bool bfloat;
};

struct CastAddDecoded {
  Rows payloads;
  float* out;
  float scale;
  bool bfloat;
};

}  // namespace gradwire
