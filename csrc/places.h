// Places between their forms: the count of each segment of 65536 elements and 16 bits each, and smaller ones.
#pragma once

#include "kernels.h"

namespace gradwire {

// `counts` add up to k when they are written from; when they are a caller's, at most k of them exist.
struct Places {
  std::uint16_t* indices;
  std::int32_t* counts;
  std::int64_t k, n;
};

void rice_encode(const Places& p, std::uint8_t* stream);
void rice_decode(const Places& p, const std::uint8_t* stream);
void bitmap_encode(const Places& p, std::uint8_t* bitmap);
void bitmap_decode(const Places& p, const std::uint8_t* bitmap);

// k units of `run` neighbours among n elements, one in each of k strata; see ops/_randomk.py.
struct Choice {
  std::uint32_t seed;
  std::int64_t k, run, n;
};

struct RandomkEncode : Choice {
  const float* x;
  float* values;
  float scale;
  bool scaled;
};

struct RandomkAddDecoded : Choice {
  const std::uint8_t* values;
  float* out;
  float scale;
};

void randomk_encode(const RandomkEncode& r, int threads);
void randomk_add_decoded(const RandomkAddDecoded& r, int threads);

}  // namespace gradwire
