// Levels on a CPU: the kernels, and the operations of ops.py, which says what the bytes are.
#include "family.h"

namespace gradwire {

struct Levels {
  std::uint8_t* codes;
  int bits;
  std::uint64_t key, step;
  float top;     // the highest level
  float shrink;  // what is decoded is multiplied by this, and so is what is subtracted from the residual
};

struct Qsgd : Levels {
  float* norms;
  std::int64_t block;
  bool l2;
  bool powers;  // levels stand for powers of two
};

struct QsgdEncode : Qsgd {
  const float* x;
};
GRADWIRE_KERNEL(qsgd_encode, QsgdEncode)

struct QsgdEncodeFeedback : Feedback, Qsgd {};
GRADWIRE_KERNEL(qsgd_encode_feedback, QsgdEncodeFeedback)

struct QsgdAddDecoded {
  Rows norms, codes;
  float* out;
  int bits;
  std::int64_t block;
  float scale, top;
  bool powers;
  bool fresh;  // out counts as 0
};
GRADWIRE_KERNEL(qsgd_add_decoded, QsgdAddDecoded)

// One norm for the whole tensor, known before.
struct Round : Levels {
  const float* norm;
};

struct RoundEncode : Round {
  const float* x;
};
GRADWIRE_KERNEL(round_encode, RoundEncode)

struct RoundKeep : Round {
  float* residual;
};
GRADWIRE_KERNEL(round_keep, RoundKeep)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/compensate.h"
#include "kernels/norms.h"
#include "kernels/philox_words.h"
#include "kernels/qsgd_codes.h"

namespace gradwire::GRADWIRE_TARGET {

// What a level stands for: itself, or a power of two, level t being 2^(t - top) of the norm.

// The unit that levels are multiples of.
template <bool kPowers>
GRADWIRE_INLINE float step_of(float norm, float top) {
  return kPowers ? norm : norm / top;
}

// The level of a share of the norm, rounded at random between the two powers beside it; below the least of them
// between that and zero. `x` gives the sign.
GRADWIRE_INLINE U32 power_of(F32 share, U32 top, F32 x, U32 u) {
  const F32 scaled = share * as_f32(shl(top + set_u32(126), 23));
  const U32 word = as_u32(scaled), one = set_u32(0x3f800000);
  const Mask large = ge(word, one);
  const F32 fraction = select(large, as_f32((word & set_u32(0x7fffff)) | one) - set(1.0f), scaled);
  const F32 rounded = mul_add_exact(from_i32(u) + set(0.5f), set(0x1p-16f), fraction);
  const U32 below = select(large, shr(word, 23) - set_u32(126), set_u32(0));
  const U32 level = below + select(ge(rounded, set(1.0f)), set_u32(1), set_u32(0));
  const U32 sign = sar(as_u32(x), 31);
  return (select(gt(level, top), top, level) ^ sign) - sign;
}

template <bool kPowers>
GRADWIRE_INLINE F32 value_of(U32 level, U32 top) {
  if constexpr (!kPowers) return from_i32(level);
  const U32 sign = sar(level, 31), magnitude = (level ^ sign) - sign;
  const U32 word = shl(magnitude + set_u32(127) - top, 23) | (sign & set_u32(0x80000000));
  return as_f32(select(eq(magnitude, set_u32(0)), set_u32(0), word));
}

// One block while it is in the L1 cache, after its norm: its levels.

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

// With this number of bits, levels become bytes first, which a function for any number packs when a part of a tile is
// complete: a variant of all that follows for each number would take long to compile, and gain something only for 2, 4
// and 8 bits, which vector instructions pack.
constexpr int kAnyBits = 0;

// Where a run of elements lies in each array.
template <int kBits>
struct Run {
  const float* x;
  float* residual;
  std::uint8_t* codes;
  int bits;

  Run at(std::int64_t i) const {
    return {x + i, residual + i, codes + i / 8 * (kBits == kAnyBits ? bits : kBits), bits};
  }
};

// A whole tile, and meanwhile the random numbers of the next: one of the two alone would wait for its own results.
template <int kBits, bool kKeep, bool kPowers>
GRADWIRE_INLINE void write_tile(const Quantiser& q, RandomTiles& r, std::int64_t tile, Run<kBits> run) {
  constexpr int kSteps = kTile / kLanes;
  const std::uint32_t* const random = random_tile(r, tile);
  PhiloxState<kPhiloxBatches> next;
  philox_start(next, r.stream, counter_of(r, tile + 1));
  alignas(64) std::uint8_t bytes[kBits == kAnyBits ? kTile : 1];
  U32 levels[4];
#pragma GCC unroll 8
  for (int round = 0; round < kPhiloxLater; ++round) {
    philox_later(next, r.stream, round);
#pragma GCC unroll 2
    for (int s = round * kSteps / kPhiloxLater; s < (round + 1) * kSteps / kPhiloxLater; ++s) {
      const int i = s * kLanes;
      levels[s % 4] = take_level<kKeep, kPowers>(q, run.x + i, run.residual + i, random + i / 2, kLanes);
      if (s % 4 != 3) continue;
      if constexpr (kBits == kAnyBits)
        store_i8(bytes + kLanes * (s - 3), levels[0], levels[1], levels[2], levels[3]);
      else
        store_levels<kBits>(run.codes + 2 * kBits * (s - 3), levels);
    }
  }
  philox_finish(next, r.stream, counter_of(r, tile + 1), r.words[(tile + 1) % 2]);
  r.ready[(tile + 1) % 2] = tile + 1;
  if constexpr (kBits == kAnyBits) kPackLevels[run.bits](run.codes, bytes, kTile);
}

// A part of a tile, with the random numbers that begin at `random`.
template <int kBits, bool kKeep, bool kPowers>
GRADWIRE_INLINE void write_part(const Quantiser& q, const std::uint32_t* random, Run<kBits> run, int count) {
  std::uint8_t bytes[kBits == kAnyBits ? kTile : 1];
  const auto step = [&](int i, int lanes) GRADWIRE_LAMBDA {
    const U32 level = take_level<kKeep, kPowers>(q, run.x + i, run.residual + i, random + i / 2, lanes);
    if constexpr (kBits == kAnyBits)
      store_u8(bytes + i, level);
    else
      store_levels<kBits>(run.codes + i / 8 * kBits, level, lanes);
  };
  int i = 0;
  for (; count - i >= kLanes; i += kLanes) step(i, kLanes);
  if (i < count) step(i, count - i);
  if constexpr (kBits == kAnyBits) kPackLevels[run.bits](run.codes, bytes, count);
}

// A block: the elements [first, first + count) of the tensor, the first of which is at x.
template <int kBits, bool kKeep, bool kPowers>
static void write_levels(const Levels& k, RandomTiles& r, const float* x, float* residual, std::int64_t first,
                         std::int64_t count, float norm) {
  const Quantiser q = quantiser<kPowers>(norm, k.top, k.shrink);
  const Run<kBits> block = {x, residual, k.codes + first / 8 * k.bits, k.bits};
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
static void write_zeros(const Levels& k, RandomTiles&, const float* x, float* residual, std::int64_t first,
                        std::int64_t count, float norm) {
  std::memset(k.codes + first / 8 * k.bits, 0, level_bytes(count, k.bits));
  if (kKeep)
    for (std::int64_t i = 0; i < count; ++i) residual[i] = x[i] + -norm * 0.0f;
}

template <bool kKeep, bool kPowers>
static void write_codes(const Levels& k, RandomTiles& r, const float* x, float* residual, std::int64_t first,
                        std::int64_t count, float norm) {
  constexpr auto any = write_levels<kAnyBits, kKeep, kPowers>;
  constexpr auto two = write_levels<kFewRegisters ? kAnyBits : 2, kKeep, kPowers>;
  constexpr auto four = write_levels<kFewRegisters ? kAnyBits : 4, kKeep, kPowers>;
  constexpr auto eight = write_levels<kFewRegisters ? kAnyBits : 8, kKeep, kPowers>;
  // By the number of bits.
  constexpr decltype(&write_zeros<kKeep>) write[] = {nullptr, nullptr, two, any, four, any, any, any, eight};
  (usable(norm) ? write[k.bits] : write_zeros<kKeep>)(k, r, x, residual, first, count, norm);
}

template <bool kKeep>
GRADWIRE_INLINE void write_block(const Qsgd& k, RandomTiles& r, const float* x, float* residual, std::int64_t first,
                                 std::int64_t count, float norm) {
  k.norms[first / k.block] = norm;
  (k.powers ? write_codes<kKeep, true> : write_codes<kKeep, false>)(k, r, x, residual, first, count, norm);
}

// QSGD codes, one pass over memory: each block is measured and rounded while it is in the L1 cache.

void qsgd_encode(const QsgdEncode& args, std::int64_t begin, std::int64_t end) {
  const QsgdEncode k = args;
  RandomTiles random = {philox_stream(k.key, k.step), begin, {-1, -1}, {}};
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    Magnitude m = {set_u32(0), set(0.0f)};
    if (k.l2)
      measure(k.x + i, count, true, m);
    else
      measure(k.x + i, count, false, m);
    write_block<false>(k, random, k.x + i, nullptr, i, count, norm_of(m, k.l2, k.x + i, count));
  }
}

// QSGD codes of residual + grad; the residual keeps what the codes do not say. One pass over memory.

GRADWIRE_INLINE void qsgd_compensate_step(const QsgdEncodeFeedback& k, std::int64_t i, int count, bool l2,
                                          Magnitude& m, U32& worst) {
  const F32 x = compensate(k, i, count, worst);
  store(k.residual + i, x, count);
  measure(m, x, l2);
}

GRADWIRE_INLINE void qsgd_compensate(const QsgdEncodeFeedback& k, std::int64_t begin, std::int64_t end, bool l2,
                                     Magnitude& m, U32& worst) {
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) qsgd_compensate_step(k, i, kLanes, l2, m, worst);
  if (i < end) qsgd_compensate_step(k, i, int(end - i), l2, m, worst);
}

void qsgd_encode_feedback(const QsgdEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const QsgdEncodeFeedback k = args;
  U32 worst = set_u32(0);
  RandomTiles random = {philox_stream(k.key, k.step), begin, {-1, -1}, {}};
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    Magnitude m = {set_u32(0), set(0.0f)};
    if (k.l2)
      qsgd_compensate(k, i, i + count, true, m, worst);
    else
      qsgd_compensate(k, i, i + count, false, m, worst);
    const float norm = norm_of(m, k.l2, k.residual + i, count);
    watch(worst, set(norm));
    write_block<true>(k, random, k.residual + i, k.residual + i, i, count, norm);
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

// Levels of a tensor whose norm is known: the second of two passes.

void round_encode(const RoundEncode& args, std::int64_t begin, std::int64_t end) {
  const RoundEncode k = args;
  RandomTiles random = {philox_stream(k.key, k.step), begin, {-1, -1}, {}};
  write_codes<false, false>(k, random, k.x + begin, nullptr, begin, end - begin, *k.norm);
}

// The same in place: what is encoded becomes what its level does not say.

void round_keep(const RoundKeep& args, std::int64_t begin, std::int64_t end) {
  const RoundKeep k = args;
  RandomTiles random = {philox_stream(k.key, k.step), begin, {-1, -1}, {}};
  float* const x = k.residual + begin;
  write_codes<true, false>(k, random, x, x, begin, end - begin, *k.norm);
}

// Adds the QSGD payloads of all ranks, one after the other, to a part of the sum that stays in the L1 cache.

constexpr std::int64_t kSumTile = 2048;

template <int kBits, bool kPowers>
GRADWIRE_INLINE void add_levels_step(float* out, const std::uint8_t* codes, F32 step, U32 top, bool fresh, int count) {
  const F32 sum = fresh ? set(0.0f) : load(out, count);
  store(out, sum + step * value_of<kPowers>(load_levels<kBits>(codes, count), top), count);
}

template <int kBits, bool kPowers>
static void add_levels(float* out, const std::uint8_t* codes, float step, float top, bool fresh, std::int64_t count) {
  const F32 s = set(step);
  const U32 t = set_u32(std::uint32_t(top));
  std::int64_t i = 0;
  for (; count - i >= kLanes; i += kLanes, codes += 2 * kBits)
    add_levels_step<kBits, kPowers>(out + i, codes, s, t, fresh, kLanes);
  if (i < count) add_levels_step<kBits, kPowers>(out + i, codes, s, t, fresh, int(count - i));
}

constexpr int kTabled = 4;  // bits; up to here the products of all levels are looked up
constexpr int kTables = 16;  // ranks whose products are kept at once

template <int kBits, bool kPowers>
GRADWIRE_INLINE F32 products(float step, float top) {
  const U32 level = sar(shl(iota(), 32 - kBits), 32 - kBits);
  return set(step) * value_of<kPowers>(level, set_u32(std::uint32_t(top)));
}

// Adds some ranks to kVectors vectors, the sums of which stay in registers.
template <int kBits, int kVectors>
GRADWIRE_INLINE void add_products(float* out, const std::uint8_t* codes, std::int64_t stride, const float* tables,
                                  std::int64_t ranks, bool fresh) {
  F32 sums[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = fresh ? set(0.0f) : load_ahead(out + v * kLanes, kLanes);
  for (std::int64_t w = 0; w < ranks; ++w, codes += stride, tables += 16) {
    const Table16 table = table16(tables);
    for (int v = 0; v < kVectors; ++v) sums[v] = sums[v] + lookup(table, load_fields<kBits>(codes + 2 * kBits * v));
  }
  for (int v = 0; v < kVectors; ++v) store(out + v * kLanes, sums[v]);
}

// What levels of a rank's block are multiples of, scaled.
template <bool kPowers>
GRADWIRE_INLINE float rank_step(const QsgdAddDecoded& k, std::int64_t w, std::int64_t block) {
  float norm;
  std::memcpy(&norm, k.norms.data + w * k.norms.stride + block * std::int64_t(sizeof norm), sizeof norm);
  return k.scale * step_of<kPowers>(norm, k.top);
}

// Whole vectors of one block. Returns where they end.
template <int kBits, bool kPowers>
static std::int64_t add_tabled(const QsgdAddDecoded& k, std::int64_t block, std::int64_t begin, std::int64_t end) {
  alignas(64) float tables[16 * kTables];
  std::int64_t i = begin;
  for (std::int64_t first = 0; first < k.codes.count; first += kTables) {
    const std::int64_t ranks = k.codes.count - first < kTables ? k.codes.count - first : kTables;
    for (std::int64_t w = 0; w < ranks; ++w)
      store(tables + 16 * w, products<kBits, kPowers>(rank_step<kPowers>(k, first + w, block), k.top));
    const std::uint8_t* const codes = k.codes.data + first * k.codes.stride;
    const bool fresh = k.fresh && first == 0;
    for (i = begin; end - i >= 4 * kLanes; i += 4 * kLanes)
      add_products<kBits, 4>(k.out + i, codes + i / 8 * kBits, k.codes.stride, tables, ranks, fresh);
    for (; end - i >= kLanes; i += kLanes)
      add_products<kBits, 1>(k.out + i, codes + i / 8 * kBits, k.codes.stride, tables, ranks, fresh);
  }
  return i;
}

template <bool kPowers>
static void add_rows(const QsgdAddDecoded& k, std::int64_t begin, std::int64_t end) {
  constexpr decltype(&add_levels<2, kPowers>) add[] = {
      nullptr,
      nullptr,
      add_levels<2, kPowers>,
      add_levels<3, kPowers>,
      add_levels<4, kPowers>,
      add_levels<5, kPowers>,
      add_levels<6, kPowers>,
      add_levels<7, kPowers>,
      add_levels<8, kPowers>,
  };
  constexpr decltype(&add_tabled<2, kPowers>) tabled[] = {nullptr, nullptr, add_tabled<2, kPowers>,
                                                          add_tabled<3, kPowers>, add_tabled<4, kPowers>};
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = i / k.block, after = (block + 1) * k.block;
    const std::int64_t stop = after < end ? after : end, next = stop < i + kSumTile ? stop : i + kSumTile;
    const std::int64_t bytes = (next - i) / 8 * k.bits;
    const std::uint8_t* const codes = k.codes.data + i / 8 * k.bits;
    for (std::int64_t w = 0; w < k.codes.count && 2 * next - i < end; ++w)
      prefetch_run(codes + w * k.codes.stride + bytes, bytes);
    const std::int64_t rest = k.bits <= kTabled ? tabled[k.bits](k, block, i, next) : i;
    for (std::int64_t w = 0; w < k.codes.count && rest < next; ++w)
      add[k.bits](k.out + rest, codes + w * k.codes.stride + (rest - i) / 8 * k.bits, rank_step<kPowers>(k, w, block),
                  k.top, k.fresh && w == 0, next - rest);
    i = next;
  }
}

void qsgd_add_decoded(const QsgdAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const QsgdAddDecoded k = args;
  (k.powers ? add_rows<true> : add_rows<false>)(k, begin, end);
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

// Where blocks are large, a decoder's ranges and those of a known norm end inside of them.
constexpr Size kRoundRange = 2048;

void check_bits(int bits) {
  if (bits < 2 || bits > 8) throw std::invalid_argument("bits must be from 2 to 8");
}

void check_block(Size block) {
  if (block < 16 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
}

// The highest level: all that the bits allow where none is given.
float top_of(int bits, int levels) { return float(levels ? levels : (1 << (bits - 1)) - 1); }

Levels levels_of(std::uint8_t* codes, int bits, int levels, double shrink, Size key, Size step) {
  check_bits(bits);
  return {codes, bits, std::uint64_t(key), std::uint64_t(step), top_of(bits, levels), float(shrink)};
}

// The norm is a word of "linf" and "l2", the grid one of "uniform" and "powers".
Qsgd qsgd(const Levels& levels, float* norms, Size block, int norm, int grid) {
  check_block(block);
  return {levels, norms, block, norm == 1, grid == 1};
}

void qsgd_encode(const float* x, float* norms, std::uint8_t* codes, int bits, Size block, int norm, Size key, Size step,
                 int levels, int grid, Size n, int threads) {
  run(kernels::qsgd_encode, {qsgd(levels_of(codes, bits, levels, 1.0, key, step), norms, block, norm, grid), x}, n,
      block, threads);
}
GRADWIRE_OPERATION(qsgd_encode)

void qsgd_encode_feedback(float* grad, float* residual, float* norms, std::uint8_t* codes, int bits, Size block,
                          int norm, Size key, Size step, Maybe<std::int32_t> status, double shrink, int levels,
                          int grid, Size n, int threads) {
  const Levels form = levels_of(codes, bits, levels, shrink, key, step);
  run(kernels::qsgd_encode_feedback, {{grad, residual, status.data}, qsgd(form, norms, block, norm, grid)}, n, block,
      threads);
}
GRADWIRE_OPERATION(qsgd_encode_feedback)

void qsgd_add_decoded(Column norms, Column codes, float* out, int bits, Size block, double scale, int levels, int grid,
                      bool fresh, Size ranks, Size n, int threads) {
  check_bits(bits), check_block(block);
  run(kernels::qsgd_add_decoded,
      {norms.rows(ranks), codes.rows(ranks), out, bits, block, float(scale), top_of(bits, levels), grid == 1, fresh}, n,
      block < kRoundRange ? block : kRoundRange, threads);
}
GRADWIRE_OPERATION(qsgd_add_decoded)

void round_encode(const float* x, const float* norm, std::uint8_t* codes, int bits, int levels, Size key, Size step,
                  Size n, int threads) {
  run_backwards(kernels::round_encode, {{levels_of(codes, bits, levels, 1.0, key, step), norm}, x}, n, kRoundRange,
                threads);
}
GRADWIRE_OPERATION(round_encode)

void round_keep(float* residual, const float* norm, std::uint8_t* codes, int bits, int levels, double shrink, Size key,
                Size step, Size n, int threads) {
  run_backwards(kernels::round_keep, {{levels_of(codes, bits, levels, shrink, key, step), norm}, residual}, n,
                kRoundRange, threads);
}
GRADWIRE_OPERATION(round_keep)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(levels) {
  using namespace selftest;
  for (int bits = 2; bits <= 8; ++bits) {
    const float top = top_of(bits, 0);
    for (const bool powers : {false, true}) {
      const auto qsgd = [=](Buffers& x) {
        return Qsgd{{x.bytes.data(), bits, 0x9876543210, 3, top, 0.7f}, x.c.data(), 48, bits % 2 != 0, powers};
      };
      check(target, "qsgd_encode", kernels::qsgd_encode,
            [=](Buffers& x, Size) { return QsgdEncode{qsgd(x), x.a.data()}; });
      check(target, "qsgd_encode_feedback", kernels::qsgd_encode_feedback, [=](Buffers& x, Size) {
        return QsgdEncodeFeedback{{x.a.data(), x.b.data(), x.status.data()}, qsgd(x)};
      });
      for (const bool fresh : {false, true})
        check(target, "qsgd_add_decoded", kernels::qsgd_add_decoded, [=](Buffers& x, Size n) {
          return QsgdAddDecoded{x.rows(n), x.rows(n), x.a.data(), bits, 48, 0.3f, top, powers, fresh};
        });
    }
    // A tensor that has a norm has no NaN.
    const auto round = [=](Buffers& x) {
      x.c[0] = 3.0f;
      for (float& value : x.a) value = value - value == 0.0f ? value : 1.0f;
      return Round{{x.bytes.data(), bits, 0x9876543210, 3, top, 0.7f}, x.c.data()};
    };
    check(target, "round_encode", kernels::round_encode,
          [=](Buffers& x, Size) { return RoundEncode{round(x), x.a.data()}; });
    check(target, "round_keep", kernels::round_keep,
          [=](Buffers& x, Size) { return RoundKeep{round(x), x.a.data()}; });
  }
}
#endif

}  // namespace gradwire::operations

#endif
