// One block of QSGD, in two steps while it is in the L1 cache: its norm, then its levels.
#pragma once

#include "kernels/philox_words.h"
#include "kernels/qsgd_codes.h"

namespace gradwire::GRADWIRE_TARGET {

// What the norm is made of: the largest magnitude, or the squares added up in 16 lanes.
struct Magnitude {
  U32 largest;
  F32 squares;
};

GRADWIRE_INLINE void measure(Magnitude& m, F32 x, bool l2) {
  if (l2)
    m.squares = m.squares + x * x;
  else
    watch(m.largest, x);
}

GRADWIRE_INLINE float root_of_sum(F32 squares) {
  float lanes[kLanes];
  store(lanes, squares);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  const float root = __builtin_sqrtf(lanes[0]);
  return root == root ? root : __builtin_nanf("");
}

// The norm as it is stored: below 2^-120 it counts as zero, since levels / norm must not overflow.
GRADWIRE_INLINE float norm_of(const Magnitude& m, bool l2) {
  float norm;
  if (l2) {
    norm = root_of_sum(m.squares);
  } else {
    const std::uint32_t word = reduce_max(m.largest);
    std::memcpy(&norm, &word, sizeof norm);
  }
  return norm < 0x1p-120f ? 0.0f : norm;
}

GRADWIRE_INLINE bool usable(float norm) { return norm > 0.0f && norm <= 0x1.fffffep127f; }

struct Quantiser {
  F32 inverse, top, backwards;
};

GRADWIRE_INLINE Quantiser quantiser(float norm, int bits) {
  const float top = float((1 << (bits - 1)) - 1);
  return {set(top / norm), set(top), set(-(norm / top))};
}

// sign(x) * min(floor(|x| * top / norm + (u + 0.5) / 2^16), top)
GRADWIRE_INLINE U32 level_of(const Quantiser& q, F32 x, U32 u) {
  const F32 magnitude = as_f32(abs_bits(x)) * q.inverse;
  const F32 rounded = min(mul_add_exact(from_i32(u) + set(0.5f), set(0x1p-16f), magnitude), q.top);
  return to_i32(as_f32(as_u32(rounded) | (as_u32(x) & set_u32(0x80000000))));
}

// kKeep: the element becomes what its level does not say.
template <bool kKeep>
GRADWIRE_INLINE U32 take_level(const Quantiser& q, const float* x, float* residual, const std::uint32_t* random,
                               int count) {
  const F32 value = load_ahead(x, count);
  const U32 level = level_of(q, value, load_u16(random));
  if (kKeep) store(residual, value + q.backwards * from_i32(level), count);
  return level;
}

template <int kBits, bool kKeep>
GRADWIRE_INLINE void level_step(const Quantiser& q, const float* x, float* residual, const std::uint32_t* random,
                                std::uint8_t* codes, int bits, int count) {
  store_levels<kBits>(codes, take_level<kKeep>(q, x, residual, random, count), bits, count);
}

constexpr int kTile = 2 * kPhiloxWords * kPhiloxBatches;

// The random numbers of two neighbouring tiles of a range, 16 bits for each element.
struct RandomTiles {
  PhiloxStream stream;
  std::int64_t begin;     // of the range
  std::int64_t ready[2];  // which tile each half holds
  std::uint32_t words[2][kTile / 2];
};

GRADWIRE_INLINE std::uint64_t counter_of(const RandomTiles& r, std::int64_t tile) {
  return std::uint64_t(r.begin + tile * kTile) / 8;
}

GRADWIRE_INLINE const std::uint32_t* random_tile(RandomTiles& r, std::int64_t tile) {
  std::uint32_t* const words = r.words[tile % 2];
  if (r.ready[tile % 2] != tile) philox_batches<kPhiloxBatches>(words, counter_of(r, tile), r.stream);
  r.ready[tile % 2] = tile;
  return words;
}

// A whole tile, and meanwhile the random numbers of the next: one of the two alone would wait for its own results.
template <int kBits, bool kKeep>
GRADWIRE_INLINE void write_tile(const Quantiser& q, RandomTiles& r, std::int64_t tile, const float* x, float* residual,
                                std::uint8_t* codes, int bits) {
  const std::uint32_t* const random = random_tile(r, tile);
  PhiloxState<kPhiloxBatches> next;
  philox_start(next, r.stream, counter_of(r, tile + 1));
  constexpr int kSteps = kTile / kLanes;
  U32 levels[4];
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    philox_round(next, r.stream, round);
#pragma GCC unroll 2
    for (int s = round * kSteps / 10; s < (round + 1) * kSteps / 10; ++s) {
      const int i = s * kLanes;
      levels[s % 4] = take_level<kKeep>(q, x + i, residual + i, random + i / 2, kLanes);
      if (s % 4 == 3) store_levels<kBits>(codes + 2 * bits * (s - 3), levels, bits);
    }
  }
  philox_finish(next, r.words[(tile + 1) % 2]);
  r.ready[(tile + 1) % 2] = tile + 1;
}

// The elements [first, first + count) of the tensor, the first of which is at x.
template <int kBits, bool kKeep>
static void write_levels(const Qsgd& k, RandomTiles& r, const float* x, float* residual, std::int64_t first,
                         std::int64_t count, float norm) {
  const int bits = kBits ? kBits : k.bits;
  const Quantiser q = quantiser(norm, bits);
  std::uint8_t* const codes = k.codes + first / 8 * bits;
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t tile = (first + i - r.begin) / kTile, place = (first + i - r.begin) % kTile;
    if (place == 0 && count - i >= kTile) {
      write_tile<kBits, kKeep>(q, r, tile, x + i, residual + i, codes + i / 8 * bits, bits);
      i += kTile;
      continue;
    }
    const std::int64_t end = count - i < kTile - place ? count : i + kTile - place;
    const std::uint32_t* random = random_tile(r, tile) + place / 2;
    for (; end - i >= kLanes; i += kLanes, random += kLanes / 2)
      level_step<kBits, kKeep>(q, x + i, residual + i, random, codes + i / 8 * bits, bits, kLanes);
    if (i < end)
      level_step<kBits, kKeep>(q, x + i, residual + i, random, codes + i / 8 * bits, bits, int(end - i)), i = end;
  }
}

// A block without a usable norm has codes of zero; what is kept of it is x, or NaN where the norm is not finite.
template <bool kKeep>
static void write_zeros(const Qsgd& k, RandomTiles&, const float* x, float* residual, std::int64_t first, std::int64_t count,
                        float norm) {
  std::memset(k.codes + first / 8 * k.bits, 0, level_bytes(count, k.bits));
  if (kKeep)
    for (std::int64_t i = 0; i < count; ++i) residual[i] = x[i] + -norm * 0.0f;
}

template <bool kKeep>
GRADWIRE_INLINE void write_block(const Qsgd& k, RandomTiles& r, const float* x, float* residual, std::int64_t first,
                                 std::int64_t count, float norm) {
  k.norms[first / k.block] = norm;
  const auto write = !usable(norm)  ? write_zeros<kKeep>
                     : k.bits == 8 ? write_levels<8, kKeep>
                     : k.bits == 4 ? write_levels<4, kKeep>
                     : k.bits == 2 ? write_levels<2, kKeep>
                                   : write_levels<0, kKeep>;
  write(k, r, x, residual, first, count, norm);
}

}  // namespace gradwire::GRADWIRE_TARGET
