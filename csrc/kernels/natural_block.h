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

// Where a block begins in each array; without kKeep there is no residual.
struct NaturalRun {
  const float* x;
  float* residual;
  std::uint8_t* codes;
  std::int64_t ahead;
};

// The codes of 16 elements, as numbers from -128 to 127.
template <bool kKeep>
GRADWIRE_INLINE U32 natural_step(const NaturalRun& run, std::int64_t i, U32 base, U32 carry, int count) {
  // Where there is a residual the step that added it has asked for the memory ahead; else the arithmetic here has time.
  const F32 x = kKeep ? load(run.x + i, count) : load_ahead(run.x + i, count, run.ahead);
  const U32 rounded = min_u32(abs_bits(x) + carry, set_u32(0x7f7fffff)), exponent = shr(rounded, 23);
  if (kKeep) {
    const U32 power = select(gt(exponent, base), rounded & set_u32(0x7f800000), set_u32(0));
    store(run.residual + i, x - as_f32(power | (as_u32(x) & set_u32(0x80000000))), count);
  }
  // What is left of the exponent in the window, 0 below it; and the sign.
  return (max_u32(exponent, base) - base) | (sar(as_u32(x), 31) & set_u32(0xffffff80));
}

constexpr int kNaturalTile = kPhiloxWords * kPhiloxBatches;
constexpr int kNaturalSteps = kNaturalTile / kLanes;

// The random words of a tile of elements, and room for those of the next. Word i of the stream belongs to element i.
struct NaturalWords {
  PhiloxStream stream;
  std::uint64_t ready;  // the counter of the first word in `now`
  int now;
  alignas(64) std::uint32_t of[2][kNaturalTile];
};

GRADWIRE_INLINE NaturalWords natural_words(const Natural& k) { return {philox_stream(k.key, k.step), ~0ull, 0, {}}; }

GRADWIRE_INLINE U32 natural_random(const std::uint32_t* words) { return load_u32(words) & set_u32(0x7fffff); }

// A tile of elements, and meanwhile the random numbers of the next: one of the two alone would wait for its results.
template <bool kKeep>
GRADWIRE_INLINE void natural_tile(const NaturalRun& run, std::int64_t i, U32 base, NaturalWords& words) {
  const std::uint32_t* const random = words.of[words.now];
  words.ready += kNaturalTile / 4, words.now = 1 - words.now;
  if constexpr (!kPhiloxInterleaved) {
    for (int s = 0; s < kNaturalTile; s += kLanes)
      store_u8(run.codes + i + s, natural_step<kKeep>(run, i + s, base, natural_random(random + s), kLanes));
    return philox_tile(words.of[words.now], words.ready, words.stream);
  }
  PhiloxState<kPhiloxBatches> state;
  philox_start(state, words.stream, words.ready);
  U32 codes[4];
#pragma GCC unroll 8
  for (int round = 0; round < kPhiloxLater; ++round) {
    philox_later(state, words.stream, round);
#pragma GCC unroll 2
    for (int s = round * kNaturalSteps / kPhiloxLater; s < (round + 1) * kNaturalSteps / kPhiloxLater; ++s) {
      codes[s % 4] = natural_step<kKeep>(run, i + s * kLanes, base, natural_random(random + s * kLanes), kLanes);
      if (kNaturalSteps % 4 != 0)
        store_u8(run.codes + i + s * kLanes, codes[s % 4]);
      else if (s % 4 == 3)
        store_i8(run.codes + i + (s - 3) * kLanes, codes[0], codes[1], codes[2], codes[3]);
    }
  }
  philox_finish(state, words.stream, words.ready, words.of[words.now]);
}

// A block: the elements [first, first + count) of the tensor.
template <bool kKeep>
static void natural_write_random(const NaturalRun& run, NaturalWords& words, std::int64_t first, std::int64_t count,
                                 std::uint32_t exponent) {
  const U32 base = set_u32(exponent);
  const std::uint64_t counter = std::uint64_t(first) / 4;
  if (words.ready != counter) philox_tile(words.of[words.now], counter, words.stream);
  words.ready = counter;
  std::int64_t i = 0;
  for (; count - i >= kNaturalTile; i += kNaturalTile) natural_tile<kKeep>(run, i, base, words);
  const std::uint32_t* rest = words.of[words.now];
  for (; i < count; i += kLanes, rest += kLanes) {
    const int lanes = count - i < kLanes ? int(count - i) : kLanes;
    store_u8(run.codes + i, natural_step<kKeep>(run, i, base, natural_random(rest), lanes), lanes);
  }
}

template <bool kKeep>
static void natural_write_nearest(const NaturalRun& run, std::int64_t count, std::uint32_t exponent) {
  const U32 base = set_u32(exponent), half = set_u32(1u << 22);
  std::int64_t i = 0;
  for (; count - i >= 4 * kLanes; i += 4 * kLanes) {
    U32 codes[4];
    for (int v = 0; v < 4; ++v) codes[v] = natural_step<kKeep>(run, i + v * kLanes, base, half, kLanes);
    store_i8(run.codes + i, codes[0], codes[1], codes[2], codes[3]);
  }
  for (; i < count; i += kLanes) {
    const int lanes = count - i < kLanes ? int(count - i) : kLanes;
    store_u8(run.codes + i, natural_step<kKeep>(run, i, base, half, lanes), lanes);
  }
}

template <bool kKeep>
GRADWIRE_INLINE void natural_block(const Natural& k, NaturalWords& words, const NaturalRun& run, std::int64_t first,
                                   std::int64_t count, std::uint32_t base) {
  k.bases[first / k.block] = std::uint8_t(base);
  if (base == kNaturalNonfinite) {
    std::memset(run.codes, 0, std::size_t(count));
    if (kKeep)
      for (std::int64_t i = 0; i < count; ++i) run.residual[i] = __builtin_nanf("");
  } else if (k.random) {
    natural_write_random<kKeep>(run, words, first, count, base);
  } else {
    natural_write_nearest<kKeep>(run, count, base);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
