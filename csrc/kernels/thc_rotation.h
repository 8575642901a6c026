// THC: where a block lies, its random signs, and its rotation.
#pragma once

#include "kernels/hadamard.h"
#include "kernels/philox_words.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kSignBatch = 32 * kPhiloxWords;  // elements: a bit each

// The size to which a block of `count` elements is padded.
GRADWIRE_INLINE int padded(std::int64_t count) {
  int size = kLanes;
  while (size < count) size *= 2;
  return size;
}

struct Signs {
  std::uint32_t words[kLongestRotation / 32 + kPhiloxWords];
  int first;  // bit
};

GRADWIRE_INLINE void draw_signs(Signs& s, const PhiloxStream& stream, std::int64_t begin, int size) {
  s.first = int(begin % kSignBatch);
  philox_words(s.words, std::uint64_t(begin / kSignBatch) * 8, (s.first + size + kSignBatch - 1) / kSignBatch, stream);
}

GRADWIRE_INLINE F32 with_signs(F32 x, const Signs& s, int i) {
  const int bit = s.first + i;
  const Mask negative = mask_of(std::uint16_t(s.words[bit / 32] >> bit % 32));
  return as_f32(as_u32(x) ^ select(negative, set_u32(0x80000000), set_u32(0)));
}

GRADWIRE_INLINE PhiloxStream signs_stream(const std::int64_t* seed) {
  return philox_stream(std::uint64_t(seed[0]), std::uint64_t(seed[1]));
}

}  // namespace gradwire::GRADWIRE_TARGET
