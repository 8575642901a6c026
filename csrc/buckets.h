// Elements as the number of the bucket that they fall into, and the sum of what such numbers stand for.
#pragma once

#include "kernels.h"

namespace gradwire {

struct BucketEncode {
  const float* x;
  const std::uint8_t* bucket_of;  // of each value of the upper 16 bits of a float
  std::uint8_t* codes;
  double* sums;  // of the elements in each bucket
  std::int64_t* counts;
};

struct BucketAddDecoded {
  Rows codes, levels;
  std::int64_t levels_count;  // of each rank; a code beyond them is the last
  float* out;
  float scale;
};

void bucket_encode(const BucketEncode& b, std::int64_t n, int threads);
void bucket_add_decoded(const BucketAddDecoded& b, std::int64_t n, int threads);

}  // namespace gradwire
