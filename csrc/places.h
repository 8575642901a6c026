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

}  // namespace gradwire
