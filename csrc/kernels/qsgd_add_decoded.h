// Adds the QSGD payloads of all ranks, one after the other, to a part of the sum that stays in the L1 cache.
#pragma once

#include "kernels/qsgd_codes.h"
#include "kernels/qsgd_powers.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kSumTile = 2048;

template <int kBits, bool kPowers>
GRADWIRE_INLINE void add_levels_step(float* out, const std::uint8_t* codes, F32 step, U32 top, int count) {
  store(out, load(out, count) + step * value_of<kPowers>(load_levels<kBits>(codes, count), top), count);
}

template <int kBits, bool kPowers>
static void add_levels(float* out, const std::uint8_t* codes, float step, float top, std::int64_t count) {
  const F32 s = set(step);
  const U32 t = set_u32(std::uint32_t(top));
  std::int64_t i = 0;
  for (; count - i >= kLanes; i += kLanes, codes += 2 * kBits)
    add_levels_step<kBits, kPowers>(out + i, codes, s, t, kLanes);
  if (i < count) add_levels_step<kBits, kPowers>(out + i, codes, s, t, int(count - i));
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
                                  std::int64_t ranks) {
  F32 sums[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = load_ahead(out + v * kLanes, kLanes);
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
    for (i = begin; end - i >= 4 * kLanes; i += 4 * kLanes)
      add_products<kBits, 4>(k.out + i, codes + i / 8 * kBits, k.codes.stride, tables, ranks);
    for (; end - i >= kLanes; i += kLanes)
      add_products<kBits, 1>(k.out + i, codes + i / 8 * kBits, k.codes.stride, tables, ranks);
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
                  k.top, next - rest);
    i = next;
  }
}

void qsgd_add_decoded(const QsgdAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const QsgdAddDecoded k = args;
  (k.powers ? add_rows<true> : add_rows<false>)(k, begin, end);
}

}  // namespace gradwire::GRADWIRE_TARGET
