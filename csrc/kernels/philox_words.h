// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011) for 8 counters at a time, each word in a lane of 64 bits: a
// product then holds the next round's two halves, and whatever lies above the low half of a lane is never looked at.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kPhiloxWords = 32;  // of 8 counters

// The keys of the ten rounds, in memory: from there they are broadcast for nothing.
struct PhiloxStream {
  std::uint64_t step, key0[10], key1[10];
};

GRADWIRE_INLINE PhiloxStream philox_stream(std::uint64_t key, std::uint64_t step) {
  PhiloxStream s;
  s.step = step;
  for (std::uint32_t round = 0; round < 10; ++round) {
    s.key0[round] = std::uint32_t(key) + round * 0x9e3779b9;
    s.key1[round] = std::uint32_t(key >> 32) + round * 0xbb67ae85;
  }
  return s;
}

// 8 * batches counters on their way through the ten rounds.
template <int batches>
struct PhiloxState {
  U64 x0[batches], x1[batches], x2[batches], x3[batches];
};

template <int batches>
GRADWIRE_INLINE void philox_start(PhiloxState<batches>& p, const PhiloxStream& s, std::uint64_t counter) {
  for (int b = 0; b < batches; ++b) {
    p.x0[b] = count_u64(counter + 8 * std::uint64_t(b)), p.x1[b] = high_half(p.x0[b]);
    p.x2[b] = set_u64(s.step), p.x3[b] = set_u64(s.step >> 32);
  }
}

template <int batches>
GRADWIRE_INLINE void philox_round(PhiloxState<batches>& p, const PhiloxStream& s, int round) {
  const U64 m0 = set_u64(0xd2511f53), m1 = set_u64(0xcd9e8d57);
  const U64 key0 = set_u64(s.key0[round]), key1 = set_u64(s.key1[round]);
#pragma GCC unroll 4
  for (int b = 0; b < batches; ++b) {
    const U64 p0 = mul_low_halves(p.x0[b], m0), p1 = mul_low_halves(p.x2[b], m1);
    p.x0[b] = xor3(high_half(p1), p.x1[b], key0), p.x1[b] = p1;
    p.x2[b] = xor3(high_half(p0), p.x3[b], key1), p.x3[b] = p0;
  }
}

// Writes kPhiloxWords * batches words.
template <int batches>
GRADWIRE_INLINE void philox_finish(const PhiloxState<batches>& p, std::uint32_t* out) {
  for (int b = 0; b < batches; ++b) store_low_halves(out + kPhiloxWords * b, p.x0[b], p.x1[b], p.x2[b], p.x3[b]);
}

template <int batches>
GRADWIRE_INLINE void philox_batches(std::uint32_t* out, std::uint64_t counter, const PhiloxStream& s) {
  PhiloxState<batches> p;
  philox_start(p, s, counter);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) philox_round(p, s, round);
  philox_finish(p, out);
}

// The same for a number of batches that is not known beforehand.
static inline void philox_words(std::uint32_t* out, std::uint64_t counter, std::int64_t batches,
                                const PhiloxStream& s) {
  std::int64_t b = 0;
  for (; batches - b >= kPhiloxBatches; b += kPhiloxBatches)
    philox_batches<kPhiloxBatches>(out + kPhiloxWords * b, counter + 8 * std::uint64_t(b), s);
  for (; b < batches; ++b) philox_batches<1>(out + kPhiloxWords * b, counter + 8 * std::uint64_t(b), s);
}

}  // namespace gradwire::GRADWIRE_TARGET
