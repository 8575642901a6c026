// Words of bits: read from anybody's bytes, and written by several threads end to end.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// 8 bytes from byte `at` on; 0 beyond the end.
GRADWIRE_INLINE std::uint64_t word_at(const ByteRun& part, std::int64_t at) {
  std::uint64_t word = 0;
  if (at + 8 <= part.size)
    std::memcpy(&word, part.data + at, 8);
  else if (at < part.size)
    std::memcpy(&word, part.data + at, std::size_t(part.size - at));
  return word;
}

// 64 bits from bit `at` on: the last of them lie in a ninth byte.
GRADWIRE_INLINE std::uint64_t bits_from(const ByteRun& part, std::int64_t at) {
  const int shift = int(at % 8);
  if (__builtin_expect(at / 8 + 16 <= part.size, 1)) {
    std::uint64_t words[2];
    std::memcpy(words, part.data + at / 8, sizeof words);
    return words[0] >> shift | words[1] << 1 << (63 - shift);
  }
  const std::uint64_t low = word_at(part, at / 8) >> shift;
  return shift == 0 ? low : low | word_at(part, at / 8 + 8) << (64 - shift);
}

// The bits of elements i to i + 63, of which those from n on do not exist.
GRADWIRE_INLINE std::uint64_t bits_of_elements(const ByteRun& bitmap, std::int64_t i, std::int64_t n) {
  const std::uint64_t word = word_at(bitmap, i / 8);
  return n - i >= 64 ? word : word & ((std::uint64_t(1) << (n - i)) - 1);
}

// 64 elements of a sum, which stay in registers while several ranks add to them.
struct Sums {
  F32 of[4];
};

GRADWIRE_INLINE int sums_count(std::int64_t left, int part) {
  const std::int64_t count = left - part * kLanes;
  return count < 0 ? 0 : count < kLanes ? int(count) : kLanes;
}

GRADWIRE_INLINE Sums load_sums(const float* out, std::int64_t left) {
  Sums sums;
  for (int part = 0; part < 4; ++part)
    sums.of[part] = left >= 64 ? load_ahead(out + part * kLanes, kLanes)
                               : load(out + part * kLanes, sums_count(left, part));
  return sums;
}

GRADWIRE_INLINE void store_sums(float* out, const Sums& sums, std::int64_t left) {
  for (int part = 0; part < 4; ++part) {
    if (left >= 64)
      store(out + part * kLanes, sums.of[part]);
    else
      store(out + part * kLanes, sums.of[part], sums_count(left, part));
  }
}

// Asks for what the bytes of one of several ranks will be needed next: a CPU follows only so many streams.
GRADWIRE_INLINE void prefetch_next(const ByteRun& part, std::int64_t at) { __builtin_prefetch(part.data + at + 512); }

// Appends bits from bit `start` of `out` on. The byte in which they start belongs to who wrote before, so where that is
// not at its first bit, what belongs there goes to `edge`.
struct BitSink {
  std::uint8_t *at, *edge;
  std::uint64_t word;
  int filled;
  bool shared;
};

GRADWIRE_INLINE BitSink bit_sink(std::uint8_t* out, std::int64_t start, std::uint8_t* edge) {
  *edge = 0;
  return {out + start / 8, edge, 0, int(start % 8), start % 8 != 0};
}

GRADWIRE_INLINE void write_bytes(BitSink& s, int count) {
  if (s.shared && count > 0) {
    *s.edge = std::uint8_t(s.word);
    std::memcpy(s.at + 1, reinterpret_cast<const std::uint8_t*>(&s.word) + 1, std::size_t(count - 1));
    s.shared = false;
  } else {
    std::memcpy(s.at, &s.word, std::size_t(count));
  }
}

// `bits` has no others than the low `count`, at most 32.
GRADWIRE_INLINE void put_bits(BitSink& s, std::uint64_t bits, int count) {
  s.word |= bits << s.filled;
  s.filled += count;
  if (s.filled < 32) return;
  write_bytes(s, 4);
  s.at += 4, s.word >>= 32, s.filled -= 32;
}

GRADWIRE_INLINE void finish_bits(BitSink& s) { write_bytes(s, (s.filled + 7) / 8); }

}  // namespace gradwire::GRADWIRE_TARGET
