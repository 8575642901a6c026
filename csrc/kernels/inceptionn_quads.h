// Four elements at a time: the byte of their tags says which bytes of their words are sent.
#pragma once

#include "kernels/qsgd_codes.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kQuad = 4;
constexpr int kQuadBytes = 16;
constexpr std::uint8_t kNothing = 0x80;  // a place from which shuffles take zero

constexpr int bytes_of_tag(int tag) { return (1 << tag) >> 1; }

// For each byte of tags: how long the codes are, from which byte of the words each of theirs comes, and the reverse.
struct Quads {
  std::uint8_t size[256], code[256][kQuadBytes], word[256][kQuadBytes];

  constexpr Quads() : size(), code(), word() {
    for (int tags = 0; tags < 256; ++tags) {
      int at = 0;
      for (int i = 0; i < kQuadBytes; ++i) code[tags][i] = word[tags][i] = kNothing;
      for (int element = 0; element < kQuad; ++element)
        for (int i = 0; i < bytes_of_tag(tags >> 2 * element & 3); ++i, ++at) {
          code[tags][at] = std::uint8_t(4 * element + i);
          word[tags][4 * element + i] = std::uint8_t(at);
        }
      size[tags] = std::uint8_t(at);
    }
  }
};

static constexpr Quads kQuads;

// The tags of up to 16 elements, zero beyond them.
GRADWIRE_INLINE std::uint32_t load_tags(const std::uint8_t* p, int count) {
  std::uint32_t tags = 0;
  std::memcpy(&tags, p, std::size_t(count + 3) / kQuad);
  return count < kLanes ? tags & ((std::uint32_t{1} << 2 * count) - 1) : tags;
}

// The codes of 16 words, one after the other; returns their end.
GRADWIRE_INLINE std::uint8_t* store_quads(std::uint8_t* p, const std::uint8_t* end, U32 words, std::uint32_t tags) {
  if (tags == 0) return p;
  // Whole quads are written, except where they would reach into another thread's part.
  std::uint8_t codes[4 * kQuadBytes], *to[4];
  const bool roomy = end - p >= 4 * kQuadBytes;
  std::uint8_t *const first = roomy ? p : codes, *next = first;
  const std::uint8_t* places[4];
#pragma GCC unroll 4
  for (int quad = 0; quad < 4; ++quad, tags >>= 8) {
    to[quad] = next, places[quad] = kQuads.code[tags & 255];
    next += kQuads.size[tags & 255];
  }
  store_shuffled(to, words, places);
  if (!roomy) std::memcpy(p, codes, std::size_t(next - first));
  return p + (next - first);
}

// The reverse, zeros where nothing was sent. Reads 16 bytes for each quad.
GRADWIRE_INLINE U32 load_quads(const std::uint8_t*& p, std::uint32_t tags) {
  const std::uint8_t *from[4], *places[4];
#pragma GCC unroll 4
  for (int quad = 0; quad < 4; ++quad, tags >>= 8) {
    from[quad] = p, places[quad] = kQuads.word[tags & 255];
    p += kQuads.size[tags & 255];
  }
  return shuffled_bytes(from, places);
}

}  // namespace gradwire::GRADWIRE_TARGET
