// Adds the powers of two of all ranks, one after the other, to a part of the sum that stays in the L1 cache.
#pragma once

#include "kernels/natural_block.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kNaturalSum = 2048;

// Exponents beyond the last one, in bytes from outside, read as an infinity.
GRADWIRE_INLINE F32 natural_value(U32 code, U32 base) {
  const U32 place = code & set_u32(0x7f), exponent = place + base, last = set_u32(255);
  const U32 power = shl(select(gt(exponent, last), last, exponent), 23);
  return as_f32(select(eq(place, set_u32(0)), set_u32(0), power) | shl(code & set_u32(0x80), 24));
}

GRADWIRE_INLINE void natural_add(float* out, const std::uint8_t* codes, std::uint8_t exponent, float factor,
                                 std::int64_t count) {
  const U32 base = set_u32(exponent);
  const F32 scale = set(exponent == kNaturalNonfinite ? __builtin_nanf("") : factor);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes)
    store(out + i, load(out + i) + scale * natural_value(load_u8(codes + i), base));
  const int rest = int(count - i);
  if (rest > 0) store(out + i, load(out + i, rest) + scale * natural_value(load_u8(codes + i, rest), base), rest);
}

void natural_add_decoded(const NaturalAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const NaturalAddDecoded k = args;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = i / k.block, after = (block + 1) * k.block;
    const std::int64_t stop = after < end ? after : end, next = stop < i + kNaturalSum ? stop : i + kNaturalSum;
    for (std::int64_t w = 0; w < k.codes.count; ++w) {
      const std::uint8_t* const codes = k.codes.data + w * k.codes.stride + i;
      if (2 * next - i < end) prefetch_run(codes + (next - i), next - i);
      natural_add(k.out + i, codes, k.bases.data[w * k.bases.stride + block], k.scale, next - i);
    }
    i = next;
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
