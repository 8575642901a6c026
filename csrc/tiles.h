// The sum of a few waves in each of many tiles.
#pragma once

#include "kernels.h"

namespace gradwire {

// `tall` and `wide` are square matrices, a wave in each row; a place is a row of the one and a row of the other.
struct WavesAddDecoded {
  Rows values, places;
  std::int64_t k;
  const float* tall;
  std::int64_t height;
  const float* wide;
  std::int64_t width;
  float* out;
  std::int64_t across, pitch;  // tiles side by side; elements of a row of `out`
  float scale;
};

void waves_add_decoded(const WavesAddDecoded& w, std::int64_t tiles, int threads);

}  // namespace gradwire
