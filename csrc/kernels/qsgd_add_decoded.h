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

// The payloads are a stream for each rank, read a little at a time: a CPU does not foresee where each goes on.
GRADWIRE_INLINE void prefetch_codes(const std::uint8_t* codes, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(codes + i);
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
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = i / k.block, after = (block + 1) * k.block;
    const std::int64_t stop = after < end ? after : end, next = stop < i + kSumTile ? stop : i + kSumTile;
    for (std::int64_t w = 0; w < k.codes.count; ++w) {
      float norm;
      std::memcpy(&norm, k.norms.data + w * k.norms.stride + block * std::int64_t(sizeof norm), sizeof norm);
      const std::uint8_t* const codes = k.codes.data + w * k.codes.stride + i / 8 * k.bits;
      if (2 * next - i < end) prefetch_codes(codes + (next - i) / 8 * k.bits, (next - i) / 8 * k.bits);
      add[k.bits](k.out + i, codes, k.scale * step_of<kPowers>(norm, k.top), k.top, next - i);
    }
    i = next;
  }
}

static void qsgd_add_decoded(const QsgdAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const QsgdAddDecoded k = args;
  (k.powers ? add_rows<true> : add_rows<false>)(k, begin, end);
}

}  // namespace gradwire::GRADWIRE_TARGET
