// Signed powers of two where a bitmap says so. The forms are those of ops/_exponents.py.
#pragma once

#include "kernels.h"

namespace gradwire {

struct ExponentEncode {
  const float* x;
  const std::uint8_t* bitmap;
  const std::int32_t* counts;
  std::uint8_t* codes;  // of k marked elements
  std::int64_t k;
  std::int32_t top;
};

// Of each rank: the bitmap and the codes, how many bytes of these are in use, and the largest exponent.
struct ExponentSum {
  Rows streams;
  std::int64_t length;
  Rows used, heads;
  float* out;
  float scale;
};

void exponent_encode(const ExponentEncode& e, std::int64_t n, int threads);
void exponent_add_decoded(const ExponentSum& e, std::int64_t n, int threads);

}  // namespace gradwire
