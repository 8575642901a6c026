// INCEPTIONN's tagged streams: where each element's code lies depends on all before it, so bytes are counted first.
#pragma once

#include "kernels.h"

namespace gradwire {

struct Inceptionn {
  const float* x;
  std::int32_t* used;
  std::uint8_t* stream;  // 1 + 4 n bytes
  int bound;
  std::int64_t n;
};

void inceptionn_encode(const Inceptionn& t, int threads);

// `t.x` is the residual.
void inceptionn_encode_feedback(const Inceptionn& t, const Feedback& feedback, int threads);

struct InceptionnDecoded {
  Rows streams;
  std::int64_t bytes;  // of each stream
  float* out;
  int bound;
  float scale;
  std::int64_t n;
};

void inceptionn_add_decoded(const InceptionnDecoded& t, int threads);

}  // namespace gradwire
