// One block of QSGD, in two steps while it is in the L1 cache: its norm, then its levels.
#pragma once

#include "kernels/philox_words.h"
#include "kernels/qsgd_codes.h"
#include "kernels/qsgd_powers.h"
#include "kernels/units.h"

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

GRADWIRE_INLINE float sum_of_lanes(F32 x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  return lanes[0];
}

// The length of a block whose squares vanish or overflow: in units of the power of two below its largest element.
static float scaled_length(const float* x, std::int64_t count) {
  U32 largest = set_u32(0);
  std::int64_t i = 0;
  for (; count - i >= kLanes; i += kLanes) watch(largest, load(x + i));
  if (i < count) watch(largest, load(x + i, int(count - i)));
  const int exponent = exponent_of(reduce_max(largest));
  const F32 unit = set(power_of_two(-exponent));
  F32 squares = set(0.0f);
  for (i = 0; i < count; i += kLanes) {
    const F32 y = load(x + i, int(count - i < kLanes ? count - i : kLanes)) * unit;
    squares = squares + y * y;
  }
  return __builtin_sqrtf(sum_of_lanes(squares)) * power_of_two(exponent);
}

// From here on no square that counts was too small for float32, in a block of up to 65536 elements.
constexpr float kLeastSquares = 0x1p-100f;

GRADWIRE_INLINE float length_of(F32 squares, const float* x, std::int64_t count) {
  const float sum = sum_of_lanes(squares);
  const bool plain = sum >= kLeastSquares && sum <= 0x1.fffffep127f;
  const float length = plain ? __builtin_sqrtf(sum) : scaled_length(x, count);
  return length == length ? length : __builtin_nanf("");
}

// The norm as it is stored: below 2^-120 it counts as zero, since levels / norm must not overflow.
GRADWIRE_INLINE float norm_of(const Magnitude& m, bool l2, const float* x, std::int64_t count) {
  float norm;
  if (l2) {
    norm = length_of(m.squares, x, count);
  } else {
    const std::uint32_t word = reduce_max(m.largest);
    std::memcpy(&norm, &word, sizeof norm);
  }
  return norm < 0x1p-120f ? 0.0f : norm;
}

GRADWIRE_INLINE bool usable(float norm) { return norm > 0.0f && norm <= 0x1.fffffep127f; }

struct Quantiser {
  F32 inverse, top, backwards;
  U32 highest;
};

template <bool kPowers>
GRADWIRE_INLINE Quantiser quantiser(float norm, float top, float shrink) {
  const float inverse = kPowers ? 1.0f / norm : top / norm;
  return {set(inverse), set(top), set(-(shrink * step_of<kPowers>(norm, top))), set_u32(std::uint32_t(top))};
}

// sign(x) * min(floor(|x| * top / norm + (u + 0.5) / 2^16), top), or the same between two powers of two.
template <bool kPowers>
GRADWIRE_INLINE U32 level_of(const Quantiser& q, F32 x, U32 u) {
  const F32 magnitude = as_f32(abs_bits(x)) * q.inverse;
  if constexpr (kPowers) return power_of(magnitude, q.highest, x, u);
  const F32 rounded = min(mul_add_exact(from_i32(u) + set(0.5f), set(0x1p-16f), magnitude), q.top);
  return to_i32(as_f32(as_u32(rounded) | (as_u32(x) & set_u32(0x80000000))));
}

// kKeep: the element becomes what its level does not say. Then the step that added the residual has asked for the
// memory ahead; without, it is done here, where the arithmetic leaves time for it.
template <bool kKeep, bool kPowers>
GRADWIRE_INLINE U32 take_level(const Quantiser& q, const float* x, float* residual, const std::uint32_t* random,
                               int count) {
  const F32 value = kKeep ? load(x, count) : load_ahead(x, count);
  const U32 level = level_of<kPowers>(q, value, load_u16(random));
  if (kKeep) store(residual, value + q.backwards * value_of<kPowers>(level, q.highest), count);
  return level;
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
  if (r.ready[tile % 2] != tile) philox_tile(words, counter_of(r, tile), r.stream);
  r.ready[tile % 2] = tile;
  return words;
}

// Where a run of elements lies in each array.
template <int kBits>
struct Run {
  const float* x;
  float* residual;
  std::uint8_t* codes;

  Run at(std::int64_t i) const { return {x + i, residual + i, codes + i / 8 * kBits}; }
};

// A whole tile, and meanwhile the random numbers of the next: one of the two alone would wait for its own results.
template <int kBits, bool kKeep, bool kPowers>
GRADWIRE_INLINE void write_tile(const Quantiser& q, RandomTiles& r, std::int64_t tile, Run<kBits> run) {
  constexpr int kSteps = kTile / kLanes;
  const std::uint32_t* const random = random_tile(r, tile);
  PhiloxState<kPhiloxBatches> next;
  philox_start(next, r.stream, counter_of(r, tile + 1));
  U32 levels[4];
#pragma GCC unroll 8
  for (int round = 0; round < kPhiloxLater; ++round) {
    philox_later(next, r.stream, round);
#pragma GCC unroll 2
    for (int s = round * kSteps / kPhiloxLater; s < (round + 1) * kSteps / kPhiloxLater; ++s) {
      const int i = s * kLanes;
      levels[s % 4] = take_level<kKeep, kPowers>(q, run.x + i, run.residual + i, random + i / 2, kLanes);
      if (s % 4 == 3) store_levels<kBits>(run.codes + 2 * kBits * (s - 3), levels);
    }
  }
  philox_finish(next, r.stream, counter_of(r, tile + 1), r.words[(tile + 1) % 2]);
  r.ready[(tile + 1) % 2] = tile + 1;
}

// A part of a tile, with the random numbers that begin at `random`.
template <int kBits, bool kKeep, bool kPowers>
GRADWIRE_INLINE void write_part(const Quantiser& q, const std::uint32_t* random, Run<kBits> run, int count) {
  int i = 0;
  for (; count - i >= kLanes; i += kLanes) {
    const U32 level = take_level<kKeep, kPowers>(q, run.x + i, run.residual + i, random + i / 2, kLanes);
    store_levels<kBits>(run.codes + i / 8 * kBits, level);
  }
  if (i == count) return;
  const U32 level = take_level<kKeep, kPowers>(q, run.x + i, run.residual + i, random + i / 2, count - i);
  store_levels<kBits>(run.codes + i / 8 * kBits, level, count - i);
}

// A block: the elements [first, first + count) of the tensor, the first of which is at x.
template <int kBits, bool kKeep, bool kPowers>
static void write_levels(const Qsgd& k, RandomTiles& r, const float* x, float* residual, std::int64_t first,
                         std::int64_t count, float norm) {
  const Quantiser q = quantiser<kPowers>(norm, k.top, k.shrink);
  const Run<kBits> block = {x, residual, k.codes + first / 8 * kBits};
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t tile = (first + i - r.begin) / kTile, place = (first + i - r.begin) % kTile;
    const int size = int(count - i < kTile - place ? count - i : kTile - place);
    if (kPhiloxInterleaved && size == kTile)
      write_tile<kBits, kKeep, kPowers>(q, r, tile, block.at(i));
    else
      write_part<kBits, kKeep, kPowers>(q, random_tile(r, tile) + place / 2, block.at(i), size);
    i += size;
  }
}

// A block without a usable norm has codes of zero; what is kept of it is x, or NaN where the norm is not finite.
template <bool kKeep>
static void write_zeros(const Qsgd& k, RandomTiles&, const float* x, float* residual, std::int64_t first,
                        std::int64_t count, float norm) {
  std::memset(k.codes + first / 8 * k.bits, 0, level_bytes(count, k.bits));
  if (kKeep)
    for (std::int64_t i = 0; i < count; ++i) residual[i] = x[i] + -norm * 0.0f;
}

template <bool kKeep, bool kPowers>
static void write_codes(const Qsgd& k, RandomTiles& r, const float* x, float* residual, std::int64_t first,
                        std::int64_t count, float norm) {
  // By the number of bits.
  constexpr decltype(&write_zeros<kKeep>) write[] = {
      nullptr,
      nullptr,
      write_levels<2, kKeep, kPowers>,
      write_levels<3, kKeep, kPowers>,
      write_levels<4, kKeep, kPowers>,
      write_levels<5, kKeep, kPowers>,
      write_levels<6, kKeep, kPowers>,
      write_levels<7, kKeep, kPowers>,
      write_levels<8, kKeep, kPowers>,
  };
  (usable(norm) ? write[k.bits] : write_zeros<kKeep>)(k, r, x, residual, first, count, norm);
}

template <bool kKeep>
GRADWIRE_INLINE void write_block(const Qsgd& k, RandomTiles& r, const float* x, float* residual, std::int64_t first,
                                 std::int64_t count, float norm) {
  k.norms[first / k.block] = norm;
  (k.powers ? write_codes<kKeep, true> : write_codes<kKeep, false>)(k, r, x, residual, first, count, norm);
}

}  // namespace gradwire::GRADWIRE_TARGET
