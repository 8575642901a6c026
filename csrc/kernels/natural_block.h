// One block of natural compression while it is in the L1 cache; gradwire/ops/_natural.py defines it, bit for bit.
#pragma once

#include "kernels/philox_words.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::uint32_t kNaturalNonfinite = 255;

// The biased exponent below a block's window, from its largest magnitude.
GRADWIRE_INLINE std::uint32_t natural_base(U32 worst) {
  const std::uint32_t exponent = reduce_max(worst) >> 23;
  return exponent == kNaturalNonfinite ? kNaturalNonfinite : exponent > 126 ? exponent - 126 : 0;
}

GRADWIRE_INLINE U32 natural_exponent(U32 magnitude, U32 carry) {
  const U32 rounded = shr(magnitude + carry, 23), largest = set_u32(254);
  return select(gt(rounded, largest), largest, rounded);
}

// What is left of the exponent in the window; 0 below it.
GRADWIRE_INLINE U32 natural_place(U32 exponent, U32 base) {
  return select(gt(exponent, base), exponent - base, set_u32(0));
}

// Where a block begins in each array; without kKeep there is no residual.
struct NaturalRun {
  const float* x;
  float* residual;
  std::uint8_t* codes;
  std::int64_t ahead;
};

template <bool kKeep>
GRADWIRE_INLINE void natural_step(const NaturalRun& run, std::int64_t i, U32 base, U32 carry, int count) {
  // Where there is a residual the step that added it has asked for the memory ahead; else the arithmetic here has time.
  const F32 x = kKeep ? load(run.x + i, count) : load_ahead(run.x + i, count, run.ahead);
  const U32 sign = as_u32(x) & set_u32(0x80000000), exponent = natural_exponent(abs_bits(x), carry);
  const U32 place = natural_place(exponent, base);
  store_u8(run.codes + i, place | shr(sign, 24), count);
  if (!kKeep) return;
  const U32 power = select(eq(place, set_u32(0)), set_u32(0), shl(exponent, 23));
  store(run.residual + i, x - as_f32(power | sign), count);
}

constexpr int kNaturalTile = kPhiloxWords * kPhiloxBatches;

GRADWIRE_INLINE U32 natural_random(const std::uint32_t* words) { return load_u32(words) & set_u32(0x7fffff); }

// A tile of elements, and meanwhile the random numbers of the next: one of the two alone would wait for its results.
template <bool kKeep>
GRADWIRE_INLINE void natural_tile(const NaturalRun& run, std::int64_t i, U32 base, const PhiloxStream& stream,
                                  const std::uint32_t* words, std::uint32_t* next, std::uint64_t counter) {
  constexpr int kSteps = kNaturalTile / kLanes;
  PhiloxState<kPhiloxBatches> state;
  philox_start(state, stream, counter + kNaturalTile / 4);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    philox_round(state, stream, round);
#pragma GCC unroll 2
    for (int s = round * kSteps / 10; s < (round + 1) * kSteps / 10; ++s)
      natural_step<kKeep>(run, i + s * kLanes, base, natural_random(words + s * kLanes), kLanes);
  }
  philox_finish(state, next);
}

// A block: the elements [first, first + count) of the tensor. Word i of the stream belongs to element i.
template <bool kKeep>
static void natural_write_random(const NaturalRun& run, const PhiloxStream& stream, std::int64_t first,
                                 std::int64_t count, std::uint32_t exponent) {
  const U32 base = set_u32(exponent);
  alignas(64) std::uint32_t words[2][kNaturalTile];
  philox_batches<kPhiloxBatches>(words[0], std::uint64_t(first) / 4, stream);
  int half = 0;
  std::int64_t i = 0;
  for (; count - i >= kNaturalTile; i += kNaturalTile, half = 1 - half)
    natural_tile<kKeep>(run, i, base, stream, words[half], words[1 - half], std::uint64_t(first + i) / 4);
  const std::uint32_t* rest = words[half];
  for (; count - i >= kLanes; i += kLanes, rest += kLanes)
    natural_step<kKeep>(run, i, base, natural_random(rest), kLanes);
  if (i < count) natural_step<kKeep>(run, i, base, natural_random(rest), int(count - i));
}

template <bool kKeep>
static void natural_write_nearest(const NaturalRun& run, std::int64_t count, std::uint32_t exponent) {
  const U32 base = set_u32(exponent), half = set_u32(1u << 22);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) natural_step<kKeep>(run, i, base, half, kLanes);
  if (i < count) natural_step<kKeep>(run, i, base, half, int(count - i));
}

template <bool kKeep>
GRADWIRE_INLINE void natural_block(const Natural& k, const PhiloxStream& stream, const NaturalRun& run,
                                   std::int64_t first, std::int64_t count, std::uint32_t base) {
  k.bases[first / k.block] = std::uint8_t(base);
  if (base == kNaturalNonfinite) {
    std::memset(run.codes, 0, std::size_t(count));
    if (kKeep)
      for (std::int64_t i = 0; i < count; ++i) run.residual[i] = __builtin_nanf("");
  } else if (k.random) {
    natural_write_random<kKeep>(run, stream, first, count, base);
  } else {
    natural_write_nearest<kKeep>(run, count, base);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
