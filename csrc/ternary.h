// Streams of +1, 0 and -1: as 2-bit codes, or smaller where most are 0. The forms are those of ops/_ternary.py.
#pragma once

#include "kernels.h"

namespace gradwire {

struct TernaryEncode {
  const std::uint8_t* codes;  // of 2 bits, in whole words
  std::int32_t* used;
  std::uint8_t* stream;  // a byte more than the codes
  bool words;
};

struct TernaryAddDecoded {
  Rows streams;
  std::int64_t length;  // of each row
  float* out;
  float step;
  Rows steps;  // factors of the step, one for each row; without data: 1
};

void ternary_encode(const TernaryEncode& t, std::int64_t n, int threads);
void ternary_add_decoded(const TernaryAddDecoded& t, std::int64_t n, int threads);

}  // namespace gradwire
