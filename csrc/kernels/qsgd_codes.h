// Levels in two's complement of `bits` bits, element i in the bits i * bits .. of the stream, lowest bit first.
// 16 levels take 2 * bits bytes, so every step of 16 begins at a byte.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// Eight levels, one in each byte of `x`, as 8 * bits bits.
GRADWIRE_INLINE std::uint64_t squeeze(std::uint64_t x, int bits) {
  std::uint64_t packed = 0;
  for (int i = 0; i < 8; ++i) packed |= (x >> 8 * i & ((1u << bits) - 1)) << bits * i;
  return packed;
}

GRADWIRE_INLINE std::uint64_t unsqueeze(std::uint64_t packed, int bits) {
  std::uint64_t x = 0;
  for (int i = 0; i < 8; ++i) x |= (packed >> bits * i & ((1u << bits) - 1)) << 8 * i;
  return x;
}

// Pairs of bits, one pair in the low half of each nibble, moved together.
GRADWIRE_INLINE std::uint32_t squeeze_pairs(std::uint64_t x) {
  x = (x | x >> 2) & 0x0f0f0f0f0f0f0f0f;
  x = (x | x >> 4) & 0x00ff00ff00ff00ff;
  x = (x | x >> 8) & 0x0000ffff0000ffff;
  return std::uint32_t(x | x >> 16);
}

// kBits: 2, 4 and 8 have their own instructions; 0 is any number, at run time in `bits`.
template <int kBits>
GRADWIRE_INLINE void store_levels(std::uint8_t* p, U32 q, int bits) {
  if constexpr (kBits == 8) {
    store_u8(p, q);
  } else if constexpr (kBits == 4) {
    store_u4(p, q);
  } else if constexpr (kBits == 2) {
    std::uint64_t nibbles;
    store_u4(&nibbles, q & set_u32(3));
    const std::uint32_t packed = squeeze_pairs(nibbles);
    std::memcpy(p, &packed, sizeof packed);
  } else {
    std::uint64_t bytes[2];
    store_u8(bytes, q);
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t packed = squeeze(bytes[half], bits);
      std::memcpy(p + half * bits, &packed, std::size_t(bits));
    }
  }
}

// Four times 16.
template <int kBits>
GRADWIRE_INLINE void store_levels(std::uint8_t* p, const U32 (&q)[4], int bits) {
  if constexpr (kBits == 8) {
    store_i8(p, q[0], q[1], q[2], q[3]);
  } else if constexpr (kBits == 4) {
    store_u4(p, q[0], q[1], q[2], q[3]);
  } else {
    for (int j = 0; j < 4; ++j) store_levels<kBits>(p + 2 * bits * j, q[j], bits);
  }
}

template <int kBits>
GRADWIRE_INLINE U32 load_levels(const std::uint8_t* p, int bits) {
  if constexpr (kBits == 8) {
    return load_i8(p);
  } else if constexpr (kBits == 4) {
    std::uint32_t words[2];
    std::memcpy(words, p, sizeof words);
    const U32 both = select(mask_of(0xff00), set_u32(words[1]), set_u32(words[0]));
    return sar(shl(both, set_u32(28) - shl(iota() & set_u32(7), 2)), 28);
  } else if constexpr (kBits == 2) {
    std::uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return sar(shl(set_u32(word), set_u32(30) - shl(iota(), 1)), 30);
  } else {
    std::uint64_t bytes[2] = {};
    for (int half = 0; half < 2; ++half) {
      std::memcpy(&bytes[half], p + half * bits, std::size_t(bits));
      bytes[half] = unsqueeze(bytes[half], bits);
    }
    return sar(shl(load_u8(bytes), 32 - bits), 32 - bits);
  }
}

GRADWIRE_INLINE std::size_t level_bytes(std::int64_t count, int bits) { return std::size_t((count * bits + 7) / 8); }

// The first `count` of 16 levels; those beyond are 0 in what is stored.
template <int kBits>
GRADWIRE_INLINE void store_levels(std::uint8_t* p, U32 q, int bits, int count) {
  if (count == kLanes) return store_levels<kBits>(p, q, bits);
  std::uint8_t whole[kLanes];
  store_levels<kBits>(whole, q, bits);
  std::memcpy(p, whole, level_bytes(count, bits));
}

template <int kBits>
GRADWIRE_INLINE U32 load_levels(const std::uint8_t* p, int bits, int count) {
  if (count == kLanes) return load_levels<kBits>(p, bits);
  std::uint8_t whole[kLanes] = {};
  std::memcpy(whole, p, level_bytes(count, bits));
  return load_levels<kBits>(whole, bits);
}

}  // namespace gradwire::GRADWIRE_TARGET
