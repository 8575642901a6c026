// The vector types in plain C++, for any CPU: four vectors of 128 bits in the compiler's own extension, which it turns
// into what the base instruction set has, or into scalars.
#pragma once

namespace gradwire::scalar {

constexpr bool kFewRegisters = true;

using F32x4 = float __attribute__((vector_size(16)));
using I32x4 = std::int32_t __attribute__((vector_size(16)));
using U32x4 = std::uint32_t __attribute__((vector_size(16)));

struct F32 { F32x4 v[4]; };
struct U32 { U32x4 v[4]; };
struct Mask { U32x4 v[4]; };  // all ones or all zeros a lane

// Written out: as loops they would lie in memory until the compiler unrolls them, after the passes that take structs
// apart, and every later pass would have to find out what is stored where.
#define GRADWIRE_PART_(place, expression)  \
  {                                        \
    constexpr int i = place;               \
    r.v[i] = (expression);                 \
  }
#define GRADWIRE_PARTS_(Type, expression)                            \
  Type r;                                                            \
  GRADWIRE_PART_(0, expression) GRADWIRE_PART_(1, expression)        \
  GRADWIRE_PART_(2, expression) GRADWIRE_PART_(3, expression)        \
  return r;
// One lane after the other.
#define GRADWIRE_LANES_(Type, Element, expression)              \
  Element lanes[kLanes];                                        \
  for (int i = 0; i < kLanes; ++i) lanes[i] = (expression);     \
  Type r;                                                       \
  std::memcpy(r.v, lanes, sizeof r.v);                          \
  return r;

GRADWIRE_INLINE F32x4 splat_(float x) { return F32x4{x, x, x, x}; }
GRADWIRE_INLINE U32x4 splat_(std::uint32_t x) { return U32x4{x, x, x, x}; }
GRADWIRE_INLINE U32x4 choose_(U32x4 m, U32x4 yes, U32x4 no) { return (m & yes) | (~m & no); }

template <class Part>
GRADWIRE_INLINE Part load_part_(const void* p, int i) {
  Part r;
  std::memcpy(&r, static_cast<const char*>(p) + sizeof r * std::size_t(i), sizeof r);
  return r;
}
template <class Vector>
GRADWIRE_INLINE void store_parts_(void* p, const Vector& x) {
  char* const q = static_cast<char*>(p);
  std::memcpy(q, &x.v[0], 16), std::memcpy(q + 16, &x.v[1], 16);
  std::memcpy(q + 32, &x.v[2], 16), std::memcpy(q + 48, &x.v[3], 16);
}

GRADWIRE_INLINE F32 load(const float* p) { GRADWIRE_PARTS_(F32, load_part_<F32x4>(p, i)) }
GRADWIRE_INLINE void store(float* p, F32 x) { store_parts_(p, x); }
GRADWIRE_INLINE void store_past_cache(float* p, F32 x) { store(p, x); }
GRADWIRE_INLINE void finish_stores() {}
GRADWIRE_INLINE F32 set(float x) { GRADWIRE_PARTS_(F32, splat_(x)) }
GRADWIRE_INLINE F32 operator+(F32 a, F32 b) { GRADWIRE_PARTS_(F32, a.v[i] + b.v[i]) }
GRADWIRE_INLINE F32 operator-(F32 a, F32 b) { GRADWIRE_PARTS_(F32, a.v[i] - b.v[i]) }
GRADWIRE_INLINE F32 operator*(F32 a, F32 b) { GRADWIRE_PARTS_(F32, a.v[i] * b.v[i]) }
GRADWIRE_INLINE F32 operator/(F32 a, F32 b) { GRADWIRE_PARTS_(F32, a.v[i] / b.v[i]) }
GRADWIRE_INLINE F32x4 sqrt_(F32x4 x) {
  return F32x4{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]), __builtin_sqrtf(x[3])};
}
GRADWIRE_INLINE F32 sqrt(F32 x) { GRADWIRE_PARTS_(F32, sqrt_(x.v[i])) }
GRADWIRE_INLINE Mask ge(F32 a, F32 b) { GRADWIRE_PARTS_(Mask, (U32x4)(a.v[i] >= b.v[i])) }
GRADWIRE_INLINE Mask gt(F32 a, F32 b) { GRADWIRE_PARTS_(Mask, (U32x4)(a.v[i] > b.v[i])) }
GRADWIRE_INLINE Mask le(F32 a, F32 b) { return ge(b, a); }
GRADWIRE_INLINE Mask lt(F32 a, F32 b) { return gt(b, a); }

template <int kDistance>
GRADWIRE_INLINE F32x4 swap_within_(F32x4 x) {
  return F32x4{x[0 ^ kDistance], x[1 ^ kDistance], x[2 ^ kDistance], x[3 ^ kDistance]};
}
template <int kDistance>
GRADWIRE_INLINE F32 swap_lanes(F32 x) {
  if constexpr (kDistance >= 4) {
    GRADWIRE_PARTS_(F32, x.v[i ^ (kDistance / 4)])
  } else {
    GRADWIRE_PARTS_(F32, swap_within_<kDistance>(x.v[i]))
  }
}

GRADWIRE_INLINE std::uint16_t bits(Mask m) {
  const U32x4 one = {1, 2, 4, 8};
  const U32x4 r = (m.v[0] & one) | (m.v[1] & one << 4) | (m.v[2] & one << 8) | (m.v[3] & one << 12);
  return std::uint16_t(r[0] | r[1] | r[2] | r[3]);
}
GRADWIRE_INLINE Mask mask_of(std::uint16_t bits) {
  const U32x4 all = splat_(std::uint32_t(bits)), one = {1, 2, 4, 8};
  GRADWIRE_PARTS_(Mask, (U32x4)((all & one << 4 * i) != splat_(0u)))
}
GRADWIRE_INLINE Mask operator&(Mask a, Mask b) { GRADWIRE_PARTS_(Mask, a.v[i] & b.v[i]) }
GRADWIRE_INLINE Mask and_not(Mask a, Mask b) { GRADWIRE_PARTS_(Mask, a.v[i] & ~b.v[i]) }

GRADWIRE_INLINE U32 as_u32(F32 x) { GRADWIRE_PARTS_(U32, (U32x4)x.v[i]) }
GRADWIRE_INLINE F32 as_f32(U32 x) { GRADWIRE_PARTS_(F32, (F32x4)x.v[i]) }
GRADWIRE_INLINE U32 to_i32(F32 x) { GRADWIRE_PARTS_(U32, (U32x4)__builtin_convertvector(x.v[i], I32x4)) }
GRADWIRE_INLINE F32 from_i32(U32 x) { GRADWIRE_PARTS_(F32, __builtin_convertvector((I32x4)x.v[i], F32x4)) }

GRADWIRE_INLINE U32 set_u32(std::uint32_t x) { GRADWIRE_PARTS_(U32, splat_(x)) }
GRADWIRE_INLINE U32 iota() { GRADWIRE_PARTS_(U32, (U32x4{0, 1, 2, 3} + splat_(4 * std::uint32_t(i)))) }
GRADWIRE_INLINE U32 load_u32(const void* p) { GRADWIRE_PARTS_(U32, load_part_<U32x4>(p, i)) }
GRADWIRE_INLINE U32 load_u16(const void* p) {
  std::uint16_t narrow[kLanes];
  std::memcpy(narrow, p, sizeof narrow);
  GRADWIRE_LANES_(U32, std::uint32_t, narrow[i])
}
GRADWIRE_INLINE U32 load_u8(const void* p) {
  std::uint8_t narrow[kLanes];
  std::memcpy(narrow, p, sizeof narrow);
  GRADWIRE_LANES_(U32, std::uint32_t, narrow[i])
}
GRADWIRE_INLINE U32 load_i8(const void* p) {
  std::int8_t narrow[kLanes];
  std::memcpy(narrow, p, sizeof narrow);
  GRADWIRE_LANES_(U32, std::uint32_t, std::uint32_t(narrow[i]))
}
GRADWIRE_INLINE void store_u32(void* p, U32 x) { store_parts_(p, x); }
GRADWIRE_INLINE void store_u16(void* p, U32 x) {
  std::uint16_t narrow[kLanes];
  for (int i = 0; i < kLanes; ++i) narrow[i] = std::uint16_t(x.v[i / 4][i % 4]);
  std::memcpy(p, narrow, sizeof narrow);
}
GRADWIRE_INLINE void store_u8(void* p, U32 x) {
  std::uint8_t narrow[kLanes];
  for (int i = 0; i < kLanes; ++i) narrow[i] = std::uint8_t(x.v[i / 4][i % 4]);
  std::memcpy(p, narrow, sizeof narrow);
}
GRADWIRE_INLINE void store_u4(void* p, U32 x) {
  std::uint8_t narrow[kLanes], pairs[kLanes / 2];
  store_u8(narrow, x);
  for (int i = 0; i < kLanes / 2; ++i) pairs[i] = std::uint8_t((narrow[2 * i] & 15) | narrow[2 * i + 1] << 4);
  std::memcpy(p, pairs, sizeof pairs);
}
GRADWIRE_INLINE void store_i8(void* p, U32 a, U32 b, U32 c, U32 d) {
  std::uint8_t* q = static_cast<std::uint8_t*>(p);
  store_u8(q, a), store_u8(q + 16, b), store_u8(q + 32, c), store_u8(q + 48, d);
}
GRADWIRE_INLINE void store_u4(void* p, U32 a, U32 b, U32 c, U32 d) {
  std::uint8_t* q = static_cast<std::uint8_t*>(p);
  store_u4(q, a), store_u4(q + 8, b), store_u4(q + 16, c), store_u4(q + 24, d);
}

// The low two bits of each lane, four lanes to a byte, the first lowest.
GRADWIRE_INLINE void store_u2(void* p, U32 a, U32 b, U32 c, U32 d) {
  std::uint8_t q[4 * kLanes], bytes[kLanes];
  store_i8(q, a, b, c, d);
  for (int i = 0; i < kLanes; ++i)
    bytes[i] = std::uint8_t((q[4 * i] & 3) | (q[4 * i + 1] & 3) << 2 | (q[4 * i + 2] & 3) << 4 | q[4 * i + 3] << 6);
  std::memcpy(p, bytes, sizeof bytes);
}

GRADWIRE_INLINE U32 operator+(U32 a, U32 b) { GRADWIRE_PARTS_(U32, a.v[i] + b.v[i]) }
GRADWIRE_INLINE U32 operator-(U32 a, U32 b) { GRADWIRE_PARTS_(U32, a.v[i] - b.v[i]) }
GRADWIRE_INLINE U32 operator*(U32 a, U32 b) { GRADWIRE_PARTS_(U32, a.v[i] * b.v[i]) }
GRADWIRE_INLINE U32 operator&(U32 a, U32 b) { GRADWIRE_PARTS_(U32, a.v[i] & b.v[i]) }
GRADWIRE_INLINE U32 operator|(U32 a, U32 b) { GRADWIRE_PARTS_(U32, a.v[i] | b.v[i]) }
GRADWIRE_INLINE U32 operator^(U32 a, U32 b) { GRADWIRE_PARTS_(U32, a.v[i] ^ b.v[i]) }
// C++ leaves a shift by 32 and more undefined: here it gives zero, as on the other targets.
GRADWIRE_INLINE U32 shl(U32 x, U32 n) {
  GRADWIRE_PARTS_(U32, (x.v[i] << (n.v[i] & splat_(31u))) & (U32x4)(n.v[i] < splat_(32u)))
}
GRADWIRE_INLINE U32 shr(U32 x, U32 n) {
  GRADWIRE_PARTS_(U32, (x.v[i] >> (n.v[i] & splat_(31u))) & (U32x4)(n.v[i] < splat_(32u)))
}
GRADWIRE_INLINE U32 shl(U32 x, int n) { return shl(x, set_u32(std::uint32_t(n))); }
GRADWIRE_INLINE U32 shr(U32 x, int n) { return shr(x, set_u32(std::uint32_t(n))); }
GRADWIRE_INLINE Mask eq(U32 a, U32 b) { GRADWIRE_PARTS_(Mask, (U32x4)(a.v[i] == b.v[i])) }
GRADWIRE_INLINE Mask ge(U32 a, U32 b) { GRADWIRE_PARTS_(Mask, (U32x4)(a.v[i] >= b.v[i])) }
GRADWIRE_INLINE Mask gt(U32 a, U32 b) { GRADWIRE_PARTS_(Mask, (U32x4)(a.v[i] > b.v[i])) }
GRADWIRE_INLINE U32 select(Mask m, U32 yes, U32 no) { GRADWIRE_PARTS_(U32, choose_(m.v[i], yes.v[i], no.v[i])) }
GRADWIRE_INLINE F32 select(Mask m, F32 yes, F32 no) { return as_f32(select(m, as_u32(yes), as_u32(no))); }
GRADWIRE_INLINE U32 sar(U32 x, int n) { GRADWIRE_PARTS_(U32, (U32x4)((I32x4)x.v[i] >> I32x4{n, n, n, n})) }
GRADWIRE_INLINE F32 mul_add_exact(F32 a, F32 b, F32 c) { return a * b + c; }
GRADWIRE_INLINE F32 min(F32 a, F32 b) { return select(lt(a, b), a, b); }
GRADWIRE_INLINE U32 max_u32(U32 a, U32 b) { return select(gt(a, b), a, b); }
GRADWIRE_INLINE U32 min_u32(U32 a, U32 b) { return select(gt(a, b), b, a); }
GRADWIRE_INLINE std::uint32_t reduce_max(U32 x) {
  const auto larger = [](U32x4 a, U32x4 b) GRADWIRE_LAMBDA { return choose_((U32x4)(a > b), a, b); };
  const U32x4 y = larger(larger(x.v[0], x.v[1]), larger(x.v[2], x.v[3]));
  const std::uint32_t a = y[0] > y[1] ? y[0] : y[1], b = y[2] > y[3] ? y[2] : y[3];
  return a > b ? a : b;
}

struct Table4 { F32 v[4]; };
GRADWIRE_INLINE Table4 table4(float a, float b, float c, float d) { return {{set(a), set(b), set(c), set(d)}}; }
GRADWIRE_INLINE F32 lookup(Table4 t, U32 index) {
  const U32 one = set_u32(1), two = set_u32(2);
  const Mask odd = eq(index & one, one), upper = eq(index & two, two);
  return select(upper, select(odd, t.v[3], t.v[2]), select(odd, t.v[1], t.v[0]));
}

struct Table16 { const float* values; };
GRADWIRE_INLINE Table16 table16(const float* p) { return {p}; }
GRADWIRE_INLINE F32 lookup(const Table16& t, U32 index) {
  GRADWIRE_LANES_(F32, float, t.values[index.v[i / 4][i % 4] & 15])
}

struct Table128 { const float* values; };
GRADWIRE_INLINE Table128 table128(const float* p) { return {p}; }
GRADWIRE_INLINE F32 lookup(const Table128& t, U32 index) {
  GRADWIRE_LANES_(F32, float, t.values[index.v[i / 4][i % 4] & 127])
}

// Exact: a subnormal half is an integer times 2^-24, a normal one moves its exponent from bias 15 to bias 127.
GRADWIRE_INLINE F32 load_f16(const void* p) {
  const U32 half = load_u16(p), magnitude = half & set_u32(0x7fff), shifted = shl(magnitude, 13);
  const U32 quiet = select(gt(magnitude, set_u32(0x7c00)), set_u32(0x400000), set_u32(0));
  const U32 special = shifted | quiet | set_u32(0x7f800000);
  const U32 subnormal = as_u32(from_i32(magnitude) * set(0x1p-24f));
  const U32 small = select(ge(magnitude, set_u32(0x400)), shifted + set_u32(112u << 23), subnormal);
  const U32 word = select(ge(magnitude, set_u32(0x7c00)), special, small);
  return as_f32(word | shl(half & set_u32(0x8000), 16));
}

// To nearest even. Adding 0.5 to a value below 2^-14 makes float32 itself round at the last bit of a subnormal half.
GRADWIRE_INLINE void store_f16(void* p, F32 x) {
  const U32 word = as_u32(x), magnitude = word & set_u32(0x7fffffff), upper = shr(magnitude, 13);
  const U32 nan = set_u32(0x7e00) | (upper & set_u32(0x3ff)), infinite = set_u32(0x7c00);
  const U32 rounded = magnitude + set_u32(0xfff) + (upper & set_u32(1));
  const U32 normal = shr(rounded - set_u32(112u << 23), 13);
  const U32 subnormal = as_u32(as_f32(magnitude) + set(0.5f)) - set_u32(0x3f000000);
  const U32 finite = select(ge(magnitude, set_u32(0x38800000)), normal, subnormal);
  const U32 large = select(gt(magnitude, set_u32(0x7f800000)), nan, infinite);
  const U32 half = select(ge(magnitude, set_u32(0x477ff000)), large, finite);
  store_u16(p, half | (shr(word, 16) & set_u32(0x8000)));
}

GRADWIRE_INLINE int store_selected(std::uint32_t* p, U32 x, Mask m) {
  int count = 0;
  for (int i = 0; i < kLanes; ++i)
    if (m.v[i / 4][i % 4]) p[count++] = x.v[i / 4][i % 4];
  return count;
}

GRADWIRE_INLINE int store_selected_u16(void* p, U32 x, Mask m) {
  std::uint16_t chosen[kLanes];
  int count = 0;
  for (int i = 0; i < kLanes; ++i)
    if (m.v[i / 4][i % 4]) chosen[count++] = std::uint16_t(x.v[i / 4][i % 4]);
  std::memcpy(p, chosen, sizeof(std::uint16_t) * count);
  return count;
}

// The selected lanes side by side, for bulk: up to 16 words from p on are overwritten. Returns how many are selected.
GRADWIRE_INLINE int store_front(std::uint32_t* p, U32 x, Mask m) { return store_selected(p, x, m); }
// The same for masks that rarely select more than four lanes: it then writes little.
GRADWIRE_INLINE int store_few(std::uint32_t* p, U32 x, Mask m) { return bits(m) ? store_selected(p, x, m) : 0; }
GRADWIRE_INLINE int store_front_u16(void* p, U32 x, Mask m) { return store_selected_u16(p, x, m); }

// Bytes of `places` name bytes of 16 others; 0x80 names a zero.
GRADWIRE_INLINE void shuffle_(std::uint8_t* to, const std::uint8_t* from, const std::uint8_t* places) {
  for (int i = 0; i < 16; ++i) to[i] = places[i] & 0x80 ? std::uint8_t{0} : from[places[i]];
}
// Each four lanes from 16 bytes of their own.
GRADWIRE_INLINE U32 shuffled_bytes(const std::uint8_t* const (&from)[4], const std::uint8_t* const (&places)[4]) {
  std::uint8_t bytes[64];
  for (int i = 0; i < 4; ++i) shuffle_(bytes + 16 * i, from[i], places[i]);
  return load_u32(bytes);
}
// 16 bytes of four lanes, as `places` names them, to each `to`, in that order: later ones may overwrite the former.
GRADWIRE_INLINE void store_shuffled(std::uint8_t* const (&to)[4], U32 x, const std::uint8_t* const (&places)[4]) {
  std::uint8_t bytes[64];
  store_u32(bytes, x);
  for (int i = 0; i < 4; ++i) shuffle_(to[i], bytes + 16 * i, places[i]);
}

struct U64 { std::uint64_t v[8]; };

#define GRADWIRE_WORDS_(expression)                              \
  U64 r;                                                         \
  GRADWIRE_PART_(0, expression) GRADWIRE_PART_(1, expression)    \
  GRADWIRE_PART_(2, expression) GRADWIRE_PART_(3, expression)    \
  GRADWIRE_PART_(4, expression) GRADWIRE_PART_(5, expression)    \
  GRADWIRE_PART_(6, expression) GRADWIRE_PART_(7, expression)    \
  return r;

constexpr int kPhiloxBatches = 1;
// 16 lanes of instructions keep the processor busy without others between them, and each copy takes long to compile.
constexpr bool kPhiloxInterleaved = false;
GRADWIRE_INLINE U64 set_u64(std::uint64_t x) { GRADWIRE_WORDS_(x) }
GRADWIRE_INLINE U64 count_u64(std::uint64_t first) { GRADWIRE_WORDS_(first + std::uint64_t(i)) }
GRADWIRE_INLINE U64 operator^(U64 a, U64 b) { GRADWIRE_WORDS_(a.v[i] ^ b.v[i]) }
GRADWIRE_INLINE U64 xor3(U64 a, U64 b, U64 c) { GRADWIRE_WORDS_(a.v[i] ^ b.v[i] ^ c.v[i]) }
GRADWIRE_INLINE U64 high_half(U64 x) { GRADWIRE_WORDS_(x.v[i] >> 32) }
GRADWIRE_INLINE U64 mul_low_halves(U64 a, U64 b) { GRADWIRE_WORDS_((a.v[i] & 0xffffffff) * (b.v[i] & 0xffffffff)) }
#undef GRADWIRE_WORDS_
GRADWIRE_INLINE void store_low_halves(std::uint32_t* p, U64 a, U64 b, U64 c, U64 d) {
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t words[4] = {std::uint32_t(a.v[i]), std::uint32_t(b.v[i]), std::uint32_t(c.v[i]),
                                    std::uint32_t(d.v[i])};
    std::memcpy(p + 4 * i, words, sizeof words);
  }
}

#undef GRADWIRE_LANES_
#undef GRADWIRE_PARTS_
#undef GRADWIRE_PART_

}  // namespace gradwire::scalar
