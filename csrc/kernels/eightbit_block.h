// A run of elements that share a scale, while they are in the L1 cache.
#pragma once

#include "kernels/eightbit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

// What a range of a tensor without blocks is worked through in.
constexpr std::int64_t kEightbitTile = 2048;

GRADWIRE_INLINE bool eightbit_usable(float norm) { return norm > 0.0f && norm <= 0x1.fffffep127f; }

GRADWIRE_INLINE float eightbit_norm(U32 worst) {
  const std::uint32_t word = reduce_max(worst);
  float norm;
  std::memcpy(&norm, &word, sizeof norm);
  return norm < 0x1p-120f ? 0.0f : norm;
}

// Where a run begins in each array; without kKeep there is no residual.
struct EightbitRun {
  const float* x;
  float* residual;
  std::uint8_t* codes;
  std::int64_t count;
};

template <Codebook kind, bool kKeep>
GRADWIRE_INLINE void eightbit_step(const EightbitRun& run, std::int64_t i, F32 inverse, F32 backwards,
                                   const Book& book, int count) {
  // Where there is a residual the step that added it has asked for the memory ahead; else the arithmetic here has time.
  const F32 x = kKeep ? load(run.x + i, count) : load_ahead(run.x + i, count, block_ahead(run.count));
  const Chosen chosen = choose<kind>(x * inverse, book);
  store_u8(run.codes + i, chosen.code, count);
  if (kKeep) store(run.residual + i, x + backwards * chosen.value, count);
}

template <Codebook kind, bool kKeep>
static void eightbit_write(const EightbitRun& run, const float* values, float norm) {
  const Book book = book_of(values);
  const F32 inverse = set(1.0f / norm), backwards = set(-(norm / kLargest<kind>));
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; run.count - i >= kLanes; i += kLanes)
    eightbit_step<kind, kKeep>(run, i, inverse, backwards, book, kLanes);
  if (i < run.count) eightbit_step<kind, kKeep>(run, i, inverse, backwards, book, int(run.count - i));
}

// A block without a usable scale has codes of zero; what is kept of it is x, or NaN where the scale is not finite.
template <Codebook kind, bool kKeep>
static void eightbit_zeros(const EightbitRun& run, const float*, float norm) {
  std::memset(run.codes, kZeroCode<kind>, std::size_t(run.count));
  if (kKeep)
    for (std::int64_t i = 0; i < run.count; ++i) run.residual[i] = run.x[i] + -norm * 0.0f;
}

template <bool kKeep>
GRADWIRE_INLINE void eightbit_run(Codebook kind, const EightbitRun& run, const float* book, float norm) {
  using Function = void (*)(const EightbitRun&, const float*, float);
  constexpr Function write[] = {eightbit_write<Codebook::linear, kKeep>, eightbit_write<Codebook::dynamic, kKeep>,
                                eightbit_write<Codebook::e4m3, kKeep>, eightbit_write<Codebook::e5m2, kKeep>};
  constexpr Function zeros[] = {eightbit_zeros<Codebook::linear, kKeep>, eightbit_zeros<Codebook::dynamic, kKeep>,
                                eightbit_zeros<Codebook::e4m3, kKeep>, eightbit_zeros<Codebook::e5m2, kKeep>};
  (eightbit_usable(norm) ? write : zeros)[int(kind)](run, book, norm);
}

}  // namespace gradwire::GRADWIRE_TARGET
