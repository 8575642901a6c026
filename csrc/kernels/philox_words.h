// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011) for 8 counters at a time, each word in a lane of 64 bits: a
// product then holds the next round's two halves, and whatever lies above the low half of a lane is never looked at.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kPhiloxWords = 32;  // of 8 counters
constexpr int kPhiloxRounds = 10;
constexpr std::uint64_t kPhiloxFirst = 0xd2511f53, kPhiloxSecond = 0xcd9e8d57;

// The keys of the ten rounds, in memory: from there they are broadcast for nothing. Counters below 2^32 have three
// words in common, so of the products of the first two rounds one each is the same for all: `common` is made of these.
struct PhiloxStream {
  std::uint64_t step, key0[kPhiloxRounds], key1[kPhiloxRounds], common[4];
};

GRADWIRE_INLINE PhiloxStream philox_stream(std::uint64_t key, std::uint64_t step) {
  PhiloxStream s;
  s.step = step;
  for (std::uint32_t round = 0; round < kPhiloxRounds; ++round) {
    s.key0[round] = std::uint32_t(key) + round * 0x9e3779b9;
    s.key1[round] = std::uint32_t(key >> 32) + round * 0xbb67ae85;
  }
  const std::uint64_t first = std::uint32_t(step) * kPhiloxSecond;
  const std::uint64_t second = std::uint32_t(first >> 32 ^ s.key0[0]) * kPhiloxFirst;
  s.common[0] = step >> 32 ^ s.key1[0], s.common[1] = first ^ s.key0[1];
  s.common[2] = second >> 32 ^ s.key1[1], s.common[3] = second;
  return s;
}

// 8 * batches counters on their way through the rounds.
template <int batches>
struct PhiloxState {
  U64 x0[batches], x1[batches], x2[batches], x3[batches];
};

template <int batches>
GRADWIRE_INLINE void philox_round(PhiloxState<batches>& p, const PhiloxStream& s, int round) {
  const U64 m0 = set_u64(kPhiloxFirst), m1 = set_u64(kPhiloxSecond);
  const U64 key0 = set_u64(s.key0[round]), key1 = set_u64(s.key1[round]);
#pragma GCC unroll 4
  for (int b = 0; b < batches; ++b) {
    const U64 p0 = mul_low_halves(p.x0[b], m0), p1 = mul_low_halves(p.x2[b], m1);
    p.x0[b] = xor3(high_half(p1), p.x1[b], key0), p.x1[b] = p1;
    p.x2[b] = xor3(high_half(p0), p.x3[b], key1), p.x3[b] = p0;
  }
}

// The first rounds, of which kPhiloxLater are left.
constexpr int kPhiloxLater = 8;

template <int batches>
GRADWIRE_INLINE void philox_start(PhiloxState<batches>& p, const PhiloxStream& s, std::uint64_t counter) {
  const U64 m0 = set_u64(kPhiloxFirst), m1 = set_u64(kPhiloxSecond);
#pragma GCC unroll 4
  for (int b = 0; b < batches; ++b) {
    const U64 p0 = mul_low_halves(count_u64(counter + 8 * std::uint64_t(b)), m0);
    const U64 p1 = mul_low_halves(high_half(p0) ^ set_u64(s.common[0]), m1);
    p.x0[b] = high_half(p1) ^ set_u64(s.common[1]), p.x1[b] = p1;
    p.x2[b] = p0 ^ set_u64(s.common[2]), p.x3[b] = set_u64(s.common[3]);
  }
}

template <int batches>
GRADWIRE_INLINE void philox_later(PhiloxState<batches>& p, const PhiloxStream& s, int round) {
  philox_round(p, s, kPhiloxRounds - kPhiloxLater + round);
}

// From 2^32 on: of no tensor of less than 2^34 elements.
static __attribute__((noinline)) void philox_far(std::uint32_t* out, std::uint64_t counter, int batches,
                                                 const PhiloxStream& s) {
  for (int b = 0; b < batches; ++b) {
    PhiloxState<1> p;
    p.x0[0] = count_u64(counter + 8 * std::uint64_t(b)), p.x1[0] = high_half(p.x0[0]);
    p.x2[0] = set_u64(s.step), p.x3[0] = set_u64(s.step >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) philox_round(p, s, round);
    store_low_halves(out + kPhiloxWords * b, p.x0[0], p.x1[0], p.x2[0], p.x3[0]);
  }
}

// Writes kPhiloxWords * batches words, those of the counters from `counter` on.
template <int batches>
GRADWIRE_INLINE void philox_finish(const PhiloxState<batches>& p, const PhiloxStream& s, std::uint64_t counter,
                                   std::uint32_t* out) {
  if (__builtin_expect((counter | (counter + 8 * batches)) >> 32 != 0, 0)) return philox_far(out, counter, batches, s);
  for (int b = 0; b < batches; ++b) store_low_halves(out + kPhiloxWords * b, p.x0[b], p.x1[b], p.x2[b], p.x3[b]);
}

template <int batches>
GRADWIRE_INLINE void philox_batches(std::uint32_t* out, std::uint64_t counter, const PhiloxStream& s) {
  PhiloxState<batches> p;
  philox_start(p, s, counter);
#pragma GCC unroll kPhiloxInterleaved ? kPhiloxLater : 1
  for (int round = 0; round < kPhiloxLater; ++round) philox_later(p, s, round);
  philox_finish(p, s, counter, out);
}

// The same as one function: kernels of many variants call it where inlining only makes them long to compile.
static inline __attribute__((noinline)) void philox_tile(std::uint32_t* out, std::uint64_t counter,
                                                         const PhiloxStream& s) {
  philox_batches<kPhiloxBatches>(out, counter, s);
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
