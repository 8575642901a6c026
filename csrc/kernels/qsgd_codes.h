// Levels in two's complement of `bits` bits, element i in the bits i * bits .. of the stream, lowest bit first.
// 16 levels take 2 * bits bytes, so every step of 16 begins at a byte.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// `x` in the lowest `bits` bits of each part of 64 / parts bits.
constexpr std::uint64_t repeat(std::uint64_t x, int parts) {
  std::uint64_t all = 0;
  for (int i = 0; i < parts; ++i) all |= x << (64 / parts * i);
  return all;
}

// Of the two neighbours that fill each part together, the lower one.
template <int kBits, int kParts>
constexpr std::uint64_t kLower = repeat((std::uint64_t{1} << (4 / kParts * kBits)) - 1, kParts);

// Moves the upper neighbour down to the lower one; each is 4 / kParts levels.
template <int kBits, int kParts>
GRADWIRE_INLINE std::uint64_t join(std::uint64_t x) {
  constexpr int size = 4 / kParts * kBits, gap = 32 / kParts - size;
  return (x & kLower<kBits, kParts>) | (x >> gap & kLower<kBits, kParts> << size);
}

// Eight levels, one in each byte, side by side.
template <int kBits>
GRADWIRE_INLINE std::uint64_t squeeze(std::uint64_t x) {
  return join<kBits, 1>(join<kBits, 2>(join<kBits, 4>(x)));
}

// 3, 5, 6 or 7 bytes, as two words that overlap: copied to memory first, they would have to wait for the copy.
template <int kBytes>
GRADWIRE_INLINE std::uint64_t load_bytes(const std::uint8_t* p) {
  constexpr int size = kBytes < 4 ? 2 : 4;
  std::uint32_t first = 0, last = 0;
  std::memcpy(&first, p, size), std::memcpy(&last, p + kBytes - size, size);
  return first | std::uint64_t(last) << 8 * (kBytes - size);
}

// The reverse for twice eight, and each in a lane: its bits may be in both halves of the 64.
template <int kBits>
GRADWIRE_INLINE U32 unsqueeze(std::uint64_t first, std::uint64_t second) {
  const Mask upper = mask_of(0xff00);
  const U32 low = select(upper, set_u32(std::uint32_t(second)), set_u32(std::uint32_t(first)));
  const U32 high = select(upper, set_u32(std::uint32_t(second >> 32)), set_u32(std::uint32_t(first >> 32)));
  const U32 offset = (iota() & set_u32(7)) * set_u32(kBits), shift = offset & set_u32(31);
  const Mask far = ge(offset, set_u32(32));
  const U32 begin = select(far, high, low), next = select(far, set_u32(0), high);
  return shr(begin, shift) | shl(next, set_u32(32) - shift);
}

template <int kBits>
GRADWIRE_INLINE void store_levels(std::uint8_t* p, U32 q) {
  if constexpr (kBits == 8) {
    store_u8(p, q);
  } else if constexpr (kBits == 4) {
    store_u4(p, q);
  } else {
    std::uint64_t bytes[2];
    store_u8(bytes, q);
    const std::uint64_t first = squeeze<kBits>(bytes[0]), second = squeeze<kBits>(bytes[1]);
    std::memcpy(p, &first, kBits), std::memcpy(p + kBits, &second, kBits);
  }
}

// Four times 16.
template <int kBits>
GRADWIRE_INLINE void store_levels(std::uint8_t* p, const U32 (&q)[4]) {
  if constexpr (kBits == 8) {
    store_i8(p, q[0], q[1], q[2], q[3]);
  } else if constexpr (kBits == 4) {
    store_u4(p, q[0], q[1], q[2], q[3]);
  } else if constexpr (kBits == 2) {
    store_u2(p, q[0], q[1], q[2], q[3]);
  } else {
    for (int j = 0; j < 4; ++j) store_levels<kBits>(p + 2 * kBits * j, q[j]);
  }
}

// 16 levels in the lowest bits of their lanes; whatever lies above belongs to other levels.
template <int kBits>
GRADWIRE_INLINE U32 load_fields(const std::uint8_t* p) {
  if constexpr (kBits == 4) {
    std::uint32_t words[2];
    std::memcpy(words, p, sizeof words);
    return shr(select(mask_of(0xff00), set_u32(words[1]), set_u32(words[0])), shl(iota() & set_u32(7), 2));
  } else if constexpr (kBits == 2) {
    std::uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return shr(set_u32(word), shl(iota(), 1));
  } else {
    return unsqueeze<kBits>(load_bytes<kBits>(p), load_bytes<kBits>(p + kBits));
  }
}

template <int kBits>
GRADWIRE_INLINE U32 load_levels(const std::uint8_t* p) {
  if constexpr (kBits == 8)
    return load_i8(p);
  else
    return sar(shl(load_fields<kBits>(p), 32 - kBits), 32 - kBits);
}

GRADWIRE_INLINE std::size_t level_bytes(std::int64_t count, int bits) { return std::size_t((count * bits + 7) / 8); }

// The first `count` of 16 levels; those beyond are 0 in what is stored.
template <int kBits>
GRADWIRE_INLINE void store_levels(std::uint8_t* p, U32 q, int count) {
  if (count == kLanes) return store_levels<kBits>(p, q);
  std::uint8_t whole[kLanes];
  store_levels<kBits>(whole, q);
  std::memcpy(p, whole, level_bytes(count, kBits));
}

template <int kBits>
GRADWIRE_INLINE U32 load_levels(const std::uint8_t* p, int count) {
  if (count == kLanes) return load_levels<kBits>(p);
  std::uint8_t whole[kLanes] = {};
  std::memcpy(whole, p, level_bytes(count, kBits));
  return load_levels<kBits>(whole);
}

// The first `count` levels of bytes, of which there are whole sixteens; what the last bytes hold beyond them is 0 too
// where those bytes are.
template <int kBits>
static void pack_levels(std::uint8_t* p, const std::uint8_t* bytes, int count) {
  if constexpr (kBits == 8) {
    std::memcpy(p, bytes, std::size_t(count));
  } else {
    const auto packed = [&](int i) GRADWIRE_LAMBDA {
      std::uint64_t eight;
      std::memcpy(&eight, bytes + i, sizeof eight);
#if defined(GRADWIRE_FAST_BITS)
      return gather_bits(eight, repeat((std::uint64_t{1} << kBits) - 1, 8));
#else
      return squeeze<kBits>(eight);
#endif
    };
    int i = 0;
    for (; count - i >= 8; i += 8, p += kBits) {
      const std::uint64_t word = packed(i);
      std::memcpy(p, &word, kBits);
    }
    if (i == count) return;
    const std::uint64_t word = packed(i);
    std::memcpy(p, &word, level_bytes(count - i, kBits));
  }
}

using PackLevels = void(std::uint8_t* p, const std::uint8_t* bytes, int count);

// By the number of bits.
constexpr PackLevels* kPackLevels[] = {nullptr,        nullptr,        pack_levels<2>, pack_levels<3>, pack_levels<4>,
                                       pack_levels<5>, pack_levels<6>, pack_levels<7>, pack_levels<8>};

}  // namespace gradwire::GRADWIRE_TARGET
