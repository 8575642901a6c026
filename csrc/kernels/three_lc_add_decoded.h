// Adds the 3LC payloads of all ranks, block by block, so that a block of the sum stays in the cache.
#pragma once

#include "kernels/three_lc_codes.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kStreams = 64;  // ranks whose place in their stream is kept at once

constexpr std::int64_t kLongestTernary = 65536;
constexpr int kGroupRoom = 8;  // bytes that are written for the 5 elements of a group

// Of each byte the elements, first to last, as 0, 1, 2, those of a run being 1; and how many they are.
struct GroupDigits {
  std::uint8_t of[256][kGroupRoom], count[256];
  constexpr GroupDigits() : of(), count() {
    for (int byte = 0; byte < 256; ++byte) {
      for (int i = 0; i < kGroupRoom; ++i) of[byte][i] = 1;
      count[byte] = std::uint8_t(byte < kFirstRun ? 5 : 5 * (byte - kFirstRun + 2));
      if (byte < kFirstRun)
        for (int i = 4, rest = byte; i >= 0; --i, rest /= 3) of[byte][i] = std::uint8_t(rest % 3);
    }
  }
};

static constexpr GroupDigits kGroupDigits;

// Some bytes that belong together: only after all of them it is asked where they end.
constexpr int kBytesAtOnce = 4;
constexpr std::int64_t kDigitsBeyond = kBytesAtOnce * 5 * kLongestRun + kGroupRoom;

GRADWIRE_INLINE void expand_groups(std::uint8_t* digits, std::int64_t count, const std::uint8_t* bytes,
                                   std::int64_t length) {
  std::memset(digits, 1, std::size_t(count));
  const std::uint8_t* const after = bytes + length;
  std::int64_t i = 0;
  const auto expand = [&](std::uint8_t byte) GRADWIRE_LAMBDA {
    std::memcpy(digits + i, kGroupDigits.of[byte], kGroupRoom);
    i += kGroupDigits.count[byte];
  };
  for (; after - bytes >= kBytesAtOnce && i < count; bytes += kBytesAtOnce)
#pragma GCC unroll 4
    for (int j = 0; j < kBytesAtOnce; ++j) expand(bytes[j]);
  for (; bytes < after && i < count; ++bytes) expand(*bytes);
}

// Adding -0 changes nothing.
GRADWIRE_INLINE void add_digits(float* out, const std::uint8_t* digits, std::int64_t count, float step) {
  const Table4 values = table4(-step, -0.0f, step, 0.0f);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) store(out + i, load(out + i) + lookup(values, load_u8(digits + i)));
  const int rest = int(count - i);
  if (rest > 0) store(out + i, load(out + i, rest) + lookup(values, load_u8(digits + i, rest)), rest);
}

template <class T>
GRADWIRE_INLINE T item_of(const Rows& rows, std::int64_t rank, std::int64_t i) {
  T item;
  std::memcpy(&item, rows.data + rank * rows.stride + i * std::int64_t(sizeof item), sizeof item);
  return item;
}

GRADWIRE_INLINE void add_ternary_block(const ThreeLcAddDecoded& k, std::uint8_t* digits, std::int64_t rank,
                                       std::int64_t block, std::int64_t count, std::int64_t& place) {
  float* const out = k.out + block * k.block;
  const float scale = item_of<float>(k.scales, rank, block), step = k.scale * scale;
  const std::int64_t length = item_of<std::int16_t>(k.lengths, rank, block);
  const std::uint8_t* const bytes = k.stream.data + rank * k.stream.stride + place;
  if (!(scale - scale == 0.0f))
    for (std::int64_t i = 0; i < count; ++i) out[i] = __builtin_nanf("");
  else if (length > 0 && place + length <= k.bytes)
    expand_groups(digits, count, bytes, length), add_digits(out, digits, count, step);
  place += length > 0 ? length : 0;
}

void three_lc_add_decoded(const ThreeLcAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const ThreeLcAddDecoded k = args;
  alignas(64) std::uint8_t digits[kLongestTernary + kDigitsBeyond];
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
        add_ternary_block(k, digits, first + w, i / k.block, count, place[w]);
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
