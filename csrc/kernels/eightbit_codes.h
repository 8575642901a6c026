// The nearest of 256 values for each of 16 elements; what gradwire/ops/_eightbit.py defines, bit for bit.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

struct Chosen {
  U32 code;
  F32 value;
};

constexpr int kDecades = 7;

template <Codebook kind>
constexpr float kLargest = kind == Codebook::linear ? 127.0f : kind == Codebook::dynamic ? 1.0f
                           : kind == Codebook::e4m3 ? 448.0f : 57344.0f;

template <Codebook kind>
constexpr std::uint8_t kZeroCode = kind == Codebook::dynamic ? 127 : 0;

// At 2^23 and a half the last bit of a float32 is 1, so adding rounds to an integer, which is in the lowest bits.
GRADWIRE_INLINE Chosen choose_linear(F32 y) {
  const F32 middle = set(0x1.8p23f), sum = y * set(127.0f) + middle;
  return {as_u32(sum), sum - middle};
}

// What a codebook needs in registers: of "dynamic" the 128 values above zero.
struct Book {
  const float* values;
  Table128 positive;
};

GRADWIRE_INLINE Book book_of(const float* values) { return {values, table128(values + 128)}; }

// `steps` codes away from zero, downwards where there is a sign.
GRADWIRE_INLINE F32 dynamic_value(const Book& book, U32 steps, U32 sign) {
  const U32 magnitude = as_u32(lookup(book.positive, steps - set_u32(1)));
  return as_f32(select(eq(steps, set_u32(0)), set_u32(0), magnitude | sign));
}

// The values go on with the lowest y of each decade, that of 1, and the codes of a decade per unit of y.
GRADWIRE_INLINE Chosen choose_dynamic(F32 y, const Book& book) {
  const float *const border = book.values + 256, *const slopes = border + kDecades + 1;
  const F32 magnitude = as_f32(abs_bits(y));
  F32 first = set(1.0f), slope = set(slopes[0]);
#pragma GCC unroll 6
  for (int d = 1; d < kDecades; ++d) {
    const Mask above = ge(magnitude, set(border[d]));
    first = select(above, set(float(1 << d)), first);
    slope = select(above, set(slopes[d]), slope);
  }
  const F32 place = magnitude * slope + first * set(8.0f / 9.0f);
  // Nothing is negative here, so the conversion to an integer is the floor.
  const U32 inside = to_i32(min(place, first + first - set(1.0f)));
  const U32 small = select(ge(magnitude, set(border[0])), inside, set_u32(0));
  const U32 steps = select(ge(y, set(border[kDecades])), set_u32(128), small);
  const U32 code = select(lt(y, set(0.0f)), set_u32(127) - steps, set_u32(127) + steps);
  return {code, dynamic_value(book, steps, as_u32(y) & set_u32(0x80000000))};
}

// To nearest even: a normal float8 by adding to its bits, a subnormal one by adding a float whose last bit is its own.
template <int kFraction, int kBias>
GRADWIRE_INLINE Chosen choose_float8(F32 scaled) {
  constexpr int kShift = 23 - kFraction;
  const U32 word = abs_bits(scaled), sign = as_u32(scaled) & set_u32(0x80000000);
  const U32 rounded = shr(word + set_u32((1u << (kShift - 1)) - 1) + (shr(word, kShift) & set_u32(1)), kShift);
  const F32 unit = as_f32(set_u32((127u + 24 - kBias - kFraction) << 23)), sum = as_f32(word) + unit;
  const Mask small = lt(as_f32(word), as_f32(set_u32((127u + 1 - kBias) << 23)));
  const U32 normal = rounded - set_u32((127u - kBias) << kFraction), subnormal = as_u32(sum) - as_u32(unit);
  const U32 value = select(small, as_u32(sum - unit), shl(rounded, kShift));
  return {select(small, subnormal, normal) | shr(sign, 24), as_f32(value | sign)};
}

// Bytes from outside may stand for what is not a number: in e4m3 the last one, in e5m2 the last exponent.
template <int kFraction, int kBias>
GRADWIRE_INLINE F32 float8_value(U32 code) {
  constexpr int kShift = 23 - kFraction;
  constexpr std::uint32_t kSpecial = kFraction == 3 ? 0x7f : 0x7c;
  const U32 magnitude = code & set_u32(0x7f), word = shl(magnitude, kShift);
  const U32 normal = word + set_u32((127u - kBias) << 23), one = set_u32((128u - kBias) << 23);
  const U32 subnormal = as_u32(as_f32(word | one) - as_f32(one));
  const U32 finite = select(ge(magnitude, set_u32(1u << kFraction)), normal, subnormal);
  const U32 value = select(ge(magnitude, set_u32(kSpecial)), word | set_u32(0x7f800000), finite);
  return as_f32(value | shl(code & set_u32(0x80), 24));
}

template <Codebook kind>
GRADWIRE_INLINE Chosen choose(F32 y, const Book& book) {
  if constexpr (kind == Codebook::linear) return choose_linear(y);
  if constexpr (kind == Codebook::dynamic) return choose_dynamic(y, book);
  if constexpr (kind == Codebook::e4m3) return choose_float8<3, 7>(y * set(kLargest<kind>));
  return choose_float8<2, 15>(y * set(kLargest<kind>));
}

template <Codebook kind>
GRADWIRE_INLINE F32 value_of(const std::uint8_t* codes, const Book& book, int count) {
  const U32 code = load_u8(codes, count);
  if constexpr (kind == Codebook::linear) return from_i32(sar(shl(code, 24), 24));
  if constexpr (kind == Codebook::e4m3) return float8_value<3, 7>(code);
  if constexpr (kind == Codebook::e5m2) return float8_value<2, 15>(code);
  const U32 steps = code - set_u32(127), sign = steps & set_u32(0x80000000);
  return dynamic_value(book, select(eq(sign, set_u32(0)), steps, set_u32(127) - code), sign);
}

// The values of 128 neighbouring codes: of "dynamic" those above zero, of others those without a sign.
template <Codebook kind>
GRADWIRE_INLINE void magnitudes(const float* values, float (&found)[128]) {
  for (int i = 0; i < 128; i += kLanes) {
    const U32 code = iota() + set_u32(std::uint32_t(i));
    if constexpr (kind == Codebook::dynamic) store(found + i, load(values + 128 + i));
    if constexpr (kind == Codebook::linear) store(found + i, from_i32(code));
    if constexpr (kind == Codebook::e4m3) store(found + i, float8_value<3, 7>(code));
    if constexpr (kind == Codebook::e5m2) store(found + i, float8_value<2, 15>(code));
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
