// Adds the 3LC payloads of all ranks, block by block, so that a block of the sum stays in the cache.
#pragma once

#include "kernels/three_lc_codes.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kStreams = 64;  // ranks whose place in their stream is kept at once

// The elements of each byte below 243, first to last, as 0, 1, 2.
struct GroupDigits {
  std::uint8_t of[kFirstRun][5];
  constexpr GroupDigits() : of() {
    for (int byte = 0; byte < kFirstRun; ++byte)
      for (int i = 4, rest = byte; i >= 0; --i, rest /= 3) of[byte][i] = std::uint8_t(rest % 3);
  }
};

GRADWIRE_INLINE void add_groups(float* out, std::int64_t count, const std::uint8_t* bytes, std::int64_t length,
                                float step) {
  static constexpr GroupDigits digits;
  const float value[3] = {-step, -0.0f, step};
  std::int64_t i = 0;
  for (const std::uint8_t* const after = bytes + length; bytes < after && i < count; ++bytes) {
    if (*bytes >= kFirstRun) {
      i += 5 * (*bytes - kFirstRun + 2);
      continue;
    }
    const std::int64_t size = count - i < 5 ? count - i : 5;
    if (*bytes != kZeroGroup)
      for (int j = 0; j < size; ++j) out[i + j] = out[i + j] + value[digits.of[*bytes][j]];
    i += 5;
  }
}

template <class T>
GRADWIRE_INLINE T item_of(const Rows& rows, std::int64_t rank, std::int64_t i) {
  T item;
  std::memcpy(&item, rows.data + rank * rows.stride + i * std::int64_t(sizeof item), sizeof item);
  return item;
}

GRADWIRE_INLINE void add_ternary_block(const ThreeLcAddDecoded& k, std::int64_t rank, std::int64_t block, float* out,
                                       std::int64_t count, std::int64_t& place) {
  const float scale = item_of<float>(k.scales, rank, block), step = k.scale * scale;
  const std::int64_t length = item_of<std::int16_t>(k.lengths, rank, block);
  const std::uint8_t* const bytes = k.stream.data + rank * k.stream.stride + place;
  if (!(scale - scale == 0.0f))
    for (std::int64_t i = 0; i < count; ++i) out[i] = __builtin_nanf("");
  else if (length > 0 && place + length <= k.bytes)
    add_groups(out, count, bytes, length, step);
  place += length > 0 ? length : 0;
}

static void three_lc_add_decoded(const ThreeLcAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const ThreeLcAddDecoded k = args;
  for (std::int64_t first = 0; first < k.stream.count; first += kStreams) {
    const std::int64_t left = k.stream.count - first, ranks = left < kStreams ? left : kStreams;
    std::int64_t place[kStreams] = {};
    for (std::int64_t w = 0; w < ranks; ++w)
      for (std::int64_t block = 0; block < begin / k.block; ++block) {
        const std::int64_t length = item_of<std::int16_t>(k.lengths, first + w, block);
        place[w] += length > 0 ? length : 0;
      }
    for (std::int64_t i = begin; i < end; i += k.block) {
      const std::int64_t count = end - i < k.block ? end - i : k.block;
      for (std::int64_t w = 0; w < ranks; ++w)
        add_ternary_block(k, first + w, i / k.block, k.out + i, count, place[w]);
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
