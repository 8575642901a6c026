// The vector types on 64-bit Arm NEON: four registers each.
#pragma once

namespace gradwire::neon {

constexpr bool kFewRegisters = false;

struct F32 { float32x4_t v[4]; };
struct U32 { uint32x4_t v[4]; };
struct Mask { uint32x4_t v[4]; };

#define GRADWIRE_LANES_(Type, expression) \
  Type r;                                 \
  for (int i = 0; i < 4; ++i) r.v[i] = (expression); \
  return r;

GRADWIRE_INLINE F32 load(const float* p) { GRADWIRE_LANES_(F32, vld1q_f32(p + 4 * i)) }
GRADWIRE_INLINE void store(float* p, F32 x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
GRADWIRE_INLINE void store_past_cache(float* p, F32 x) { store(p, x); }
GRADWIRE_INLINE void finish_stores() {}
GRADWIRE_INLINE F32 set(float x) { GRADWIRE_LANES_(F32, vdupq_n_f32(x)) }
GRADWIRE_INLINE F32 operator+(F32 a, F32 b) { GRADWIRE_LANES_(F32, vaddq_f32(a.v[i], b.v[i])) }
GRADWIRE_INLINE F32 operator-(F32 a, F32 b) { GRADWIRE_LANES_(F32, vsubq_f32(a.v[i], b.v[i])) }
GRADWIRE_INLINE F32 operator*(F32 a, F32 b) { GRADWIRE_LANES_(F32, vmulq_f32(a.v[i], b.v[i])) }
GRADWIRE_INLINE F32 operator/(F32 a, F32 b) { GRADWIRE_LANES_(F32, vdivq_f32(a.v[i], b.v[i])) }
GRADWIRE_INLINE F32 mul_add_exact(F32 a, F32 b, F32 c) { return a * b + c; }
GRADWIRE_INLINE F32 min(F32 a, F32 b) { GRADWIRE_LANES_(F32, vminq_f32(a.v[i], b.v[i])) }
GRADWIRE_INLINE F32 sqrt(F32 x) { GRADWIRE_LANES_(F32, vsqrtq_f32(x.v[i])) }
GRADWIRE_INLINE Mask ge(F32 a, F32 b) { GRADWIRE_LANES_(Mask, vcgeq_f32(a.v[i], b.v[i])) }
GRADWIRE_INLINE Mask gt(F32 a, F32 b) { GRADWIRE_LANES_(Mask, vcgtq_f32(a.v[i], b.v[i])) }
GRADWIRE_INLINE Mask le(F32 a, F32 b) { return ge(b, a); }
GRADWIRE_INLINE Mask lt(F32 a, F32 b) { return gt(b, a); }
GRADWIRE_INLINE F32 select(Mask m, F32 yes, F32 no) { GRADWIRE_LANES_(F32, vbslq_f32(m.v[i], yes.v[i], no.v[i])) }

template <int kDistance>
GRADWIRE_INLINE F32 swap_lanes(F32 x) {
  if constexpr (kDistance == 1) { GRADWIRE_LANES_(F32, vrev64q_f32(x.v[i])) }
  if constexpr (kDistance == 2) { GRADWIRE_LANES_(F32, vextq_f32(x.v[i], x.v[i], 2)) }
  if constexpr (kDistance >= 4) { GRADWIRE_LANES_(F32, x.v[i ^ (kDistance / 4)]) }
}

GRADWIRE_INLINE std::uint16_t bits(Mask m) {
  const std::uint32_t place[4] = {1, 2, 4, 8};
  const uint32x4_t one = vld1q_u32(place);
  std::uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= vaddvq_u32(vandq_u32(m.v[i], one)) << 4 * i;
  return std::uint16_t(r);
}
GRADWIRE_INLINE Mask mask_of(std::uint16_t bits) {
  const std::uint32_t place[4] = {1, 2, 4, 8};
  const uint32x4_t one = vld1q_u32(place);
  GRADWIRE_LANES_(Mask, vtstq_u32(vdupq_n_u32(bits >> 4 * i), one))
}
GRADWIRE_INLINE Mask operator&(Mask a, Mask b) { GRADWIRE_LANES_(Mask, vandq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE Mask and_not(Mask a, Mask b) { GRADWIRE_LANES_(Mask, vbicq_u32(a.v[i], b.v[i])) }

GRADWIRE_INLINE U32 as_u32(F32 x) { GRADWIRE_LANES_(U32, vreinterpretq_u32_f32(x.v[i])) }
GRADWIRE_INLINE F32 as_f32(U32 x) { GRADWIRE_LANES_(F32, vreinterpretq_f32_u32(x.v[i])) }
GRADWIRE_INLINE U32 to_i32(F32 x) { GRADWIRE_LANES_(U32, vreinterpretq_u32_s32(vcvtq_s32_f32(x.v[i]))) }
GRADWIRE_INLINE F32 from_i32(U32 x) { GRADWIRE_LANES_(F32, vcvtq_f32_s32(vreinterpretq_s32_u32(x.v[i]))) }

GRADWIRE_INLINE U32 set_u32(std::uint32_t x) { GRADWIRE_LANES_(U32, vdupq_n_u32(x)) }
GRADWIRE_INLINE U32 load_u32(const void* p) {
  GRADWIRE_LANES_(U32, vreinterpretq_u32_u8(vld1q_u8(static_cast<const std::uint8_t*>(p) + 16 * i)))
}
GRADWIRE_INLINE U32 iota() {
  const std::uint32_t lanes[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_u32(lanes);
}
GRADWIRE_INLINE U32 widen_(uint16x8_t lo, uint16x8_t hi) {
  return {{vmovl_u16(vget_low_u16(lo)), vmovl_high_u16(lo), vmovl_u16(vget_low_u16(hi)), vmovl_high_u16(hi)}};
}
GRADWIRE_INLINE U32 load_u16(const void* p) {
  const std::uint8_t* q = static_cast<const std::uint8_t*>(p);
  return widen_(vreinterpretq_u16_u8(vld1q_u8(q)), vreinterpretq_u16_u8(vld1q_u8(q + 16)));
}
GRADWIRE_INLINE U32 load_u8(const void* p) {
  const uint8x16_t x = vld1q_u8(static_cast<const std::uint8_t*>(p));
  return widen_(vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x));
}
GRADWIRE_INLINE U32 load_i8(const void* p) {
  const int8x16_t x = vreinterpretq_s8_u8(vld1q_u8(static_cast<const std::uint8_t*>(p)));
  const int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_high_s8(x);
  return {{vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(lo))), vreinterpretq_u32_s32(vmovl_high_s16(lo)),
           vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(hi))), vreinterpretq_u32_s32(vmovl_high_s16(hi))}};
}
GRADWIRE_INLINE void store_u32(void* p, U32 x) {
  for (int i = 0; i < 4; ++i) vst1q_u8(static_cast<std::uint8_t*>(p) + 16 * i, vreinterpretq_u8_u32(x.v[i]));
}
GRADWIRE_INLINE uint16x8_t narrow_(uint32x4_t lo, uint32x4_t hi) { return vcombine_u16(vmovn_u32(lo), vmovn_u32(hi)); }
GRADWIRE_INLINE void store_u16(void* p, U32 x) {
  std::uint8_t* q = static_cast<std::uint8_t*>(p);
  vst1q_u8(q, vreinterpretq_u8_u16(narrow_(x.v[0], x.v[1])));
  vst1q_u8(q + 16, vreinterpretq_u8_u16(narrow_(x.v[2], x.v[3])));
}
GRADWIRE_INLINE void store_u8(void* p, U32 x) {
  vst1q_u8(static_cast<std::uint8_t*>(p),
           vcombine_u8(vmovn_u16(narrow_(x.v[0], x.v[1])), vmovn_u16(narrow_(x.v[2], x.v[3]))));
}
GRADWIRE_INLINE void store_u4(void* p, U32 x) {
  const uint8x16_t bytes =
      vcombine_u8(vmovn_u16(narrow_(x.v[0], x.v[1])), vmovn_u16(narrow_(x.v[2], x.v[3])));
  const uint16x8_t pairs = vreinterpretq_u16_u8(vandq_u8(bytes, vdupq_n_u8(15)));
  vst1_u8(static_cast<std::uint8_t*>(p), vmovn_u16(vorrq_u16(pairs, vshrq_n_u16(pairs, 4))));
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
  std::uint8_t bytes[4 * kLanes];
  store_i8(bytes, a, b, c, d);
  const uint8x16x4_t q = vld4q_u8(bytes);
  const uint8x16_t two = vdupq_n_u8(3);
  const uint8x16_t low = vorrq_u8(vandq_u8(q.val[0], two), vshlq_n_u8(vandq_u8(q.val[1], two), 2));
  const uint8x16_t high = vorrq_u8(vshlq_n_u8(vandq_u8(q.val[2], two), 4), vshlq_n_u8(q.val[3], 6));
  vst1q_u8(static_cast<std::uint8_t*>(p), vorrq_u8(low, high));
}

GRADWIRE_INLINE U32 operator+(U32 a, U32 b) { GRADWIRE_LANES_(U32, vaddq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE U32 operator-(U32 a, U32 b) { GRADWIRE_LANES_(U32, vsubq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE U32 operator*(U32 a, U32 b) { GRADWIRE_LANES_(U32, vmulq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE U32 operator&(U32 a, U32 b) { GRADWIRE_LANES_(U32, vandq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE U32 operator|(U32 a, U32 b) { GRADWIRE_LANES_(U32, vorrq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE U32 operator^(U32 a, U32 b) { GRADWIRE_LANES_(U32, veorq_u32(a.v[i], b.v[i])) }
// NEON shifts left by a signed amount, so a shift right is one by minus n; 32 and more give zero, as on x86.
GRADWIRE_INLINE U32 shl(U32 x, U32 n) { GRADWIRE_LANES_(U32, vshlq_u32(x.v[i], vreinterpretq_s32_u32(n.v[i]))) }
GRADWIRE_INLINE U32 shr(U32 x, U32 n) {
  GRADWIRE_LANES_(U32, vshlq_u32(x.v[i], vnegq_s32(vreinterpretq_s32_u32(n.v[i]))))
}
GRADWIRE_INLINE U32 shl(U32 x, int n) { GRADWIRE_LANES_(U32, vshlq_u32(x.v[i], vdupq_n_s32(n))) }
GRADWIRE_INLINE U32 shr(U32 x, int n) { GRADWIRE_LANES_(U32, vshlq_u32(x.v[i], vdupq_n_s32(-n))) }
GRADWIRE_INLINE U32 sar(U32 x, int n) {
  GRADWIRE_LANES_(U32, vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(x.v[i]), vdupq_n_s32(-n))))
}
GRADWIRE_INLINE U32 max_u32(U32 a, U32 b) { GRADWIRE_LANES_(U32, vmaxq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE U32 min_u32(U32 a, U32 b) { GRADWIRE_LANES_(U32, vminq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE Mask eq(U32 a, U32 b) { GRADWIRE_LANES_(Mask, vceqq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE Mask ge(U32 a, U32 b) { GRADWIRE_LANES_(Mask, vcgeq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE Mask gt(U32 a, U32 b) { GRADWIRE_LANES_(Mask, vcgtq_u32(a.v[i], b.v[i])) }
GRADWIRE_INLINE U32 select(Mask m, U32 yes, U32 no) { GRADWIRE_LANES_(U32, vbslq_u32(m.v[i], yes.v[i], no.v[i])) }
GRADWIRE_INLINE std::uint32_t reduce_max(U32 x) {
  return vmaxvq_u32(vmaxq_u32(vmaxq_u32(x.v[0], x.v[1]), vmaxq_u32(x.v[2], x.v[3])));
}

struct Table4 { float32x4_t v[4]; };
GRADWIRE_INLINE Table4 table4(float a, float b, float c, float d) {
  return {{vdupq_n_f32(a), vdupq_n_f32(b), vdupq_n_f32(c), vdupq_n_f32(d)}};
}
GRADWIRE_INLINE float32x4_t lookup_(Table4 t, uint32x4_t index) {
  const uint32x4_t odd = vtstq_u32(index, vdupq_n_u32(1)), upper = vtstq_u32(index, vdupq_n_u32(2));
  return vbslq_f32(upper, vbslq_f32(odd, t.v[3], t.v[2]), vbslq_f32(odd, t.v[1], t.v[0]));
}
GRADWIRE_INLINE F32 lookup(Table4 t, U32 index) { GRADWIRE_LANES_(F32, lookup_(t, index.v[i])) }

struct Table16 { uint8x16x4_t v; };
GRADWIRE_INLINE Table16 table16(const float* p) {
  const auto* const q = reinterpret_cast<const std::uint8_t*>(p);
  return {{{vld1q_u8(q), vld1q_u8(q + 16), vld1q_u8(q + 32), vld1q_u8(q + 48)}}};
}
GRADWIRE_INLINE float32x4_t lookup_(const Table16& t, uint32x4_t index) {
  // The four bytes of a value.
  const uint32x4_t first = vmulq_n_u32(vandq_u32(index, vdupq_n_u32(15)), 0x04040404);
  const uint32x4_t places = vaddq_u32(first, vdupq_n_u32(0x03020100));
  return vreinterpretq_f32_u8(vqtbl4q_u8(t.v, vreinterpretq_u8_u32(places)));
}
GRADWIRE_INLINE F32 lookup(const Table16& t, U32 index) { GRADWIRE_LANES_(F32, lookup_(t, index.v[i])) }

struct Table128 { const float* values; };
GRADWIRE_INLINE Table128 table128(const float* p) { return {p}; }
GRADWIRE_INLINE F32 lookup(const Table128& t, U32 index) {
  std::uint32_t places[kLanes];
  float lanes[kLanes];
  store_u32(places, index);
  for (int i = 0; i < kLanes; ++i) lanes[i] = t.values[places[i] & 127];
  return load(lanes);
}

GRADWIRE_INLINE F32 load_f16(const void* p) {
  const std::uint8_t* q = static_cast<const std::uint8_t*>(p);
  GRADWIRE_LANES_(F32, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(q + 8 * i))))
}
GRADWIRE_INLINE void store_f16(void* p, F32 x) {
  for (int i = 0; i < 4; ++i)
    vst1_u8(static_cast<std::uint8_t*>(p) + 8 * i, vreinterpret_u8_f16(vcvt_f16_f32(x.v[i])));
}

GRADWIRE_INLINE int store_selected(std::uint32_t* p, U32 x, Mask m) {
  std::uint32_t lanes[kLanes];
  store_u32(lanes, x);
  int count = 0;
  for (std::uint32_t left = bits(m); left != 0; left &= left - 1) p[count++] = lanes[__builtin_ctz(left)];
  return count;
}

GRADWIRE_INLINE int store_selected_u16(void* p, U32 x, Mask m) {
  std::uint16_t lanes[kLanes], chosen[kLanes];
  store_u16(lanes, x);
  int count = 0;
  for (std::uint32_t left = bits(m); left != 0; left &= left - 1) chosen[count++] = lanes[__builtin_ctz(left)];
  std::memcpy(p, chosen, sizeof(std::uint16_t) * count);
  return count;
}

// The selected lanes side by side, for bulk: up to 16 words from p on are overwritten. Returns how many are selected.
GRADWIRE_INLINE int store_front(std::uint32_t* p, U32 x, Mask m) { return store_selected(p, x, m); }
// The same for masks that rarely select more than four lanes: it then writes little.
GRADWIRE_INLINE int store_few(std::uint32_t* p, U32 x, Mask m) { return bits(m) ? store_selected(p, x, m) : 0; }
GRADWIRE_INLINE int store_front_u16(void* p, U32 x, Mask m) { return store_selected_u16(p, x, m); }

// Bytes of `places` name bytes of 16 others; 0x80 names a zero. Each four lanes from 16 bytes of their own.
GRADWIRE_INLINE U32 shuffled_bytes(const std::uint8_t* const (&from)[4], const std::uint8_t* const (&places)[4]) {
  GRADWIRE_LANES_(U32, vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(from[i]), vld1q_u8(places[i]))))
}
// 16 bytes of four lanes, as `places` names them, to each `to`, in that order: later ones may overwrite the former.
GRADWIRE_INLINE void store_shuffled(std::uint8_t* const (&to)[4], U32 x, const std::uint8_t* const (&places)[4]) {
  for (int i = 0; i < 4; ++i) vst1q_u8(to[i], vqtbl1q_u8(vreinterpretq_u8_u32(x.v[i]), vld1q_u8(places[i])));
}

struct U64 { uint64x2_t v[4]; };
constexpr int kPhiloxBatches = 1;
constexpr bool kPhiloxInterleaved = true;  // with the work that the numbers are for
GRADWIRE_INLINE U64 set_u64(std::uint64_t x) { GRADWIRE_LANES_(U64, vdupq_n_u64(x)) }
GRADWIRE_INLINE U64 count_u64(std::uint64_t first) {
  GRADWIRE_LANES_(U64, vcombine_u64(vcreate_u64(first + 2 * i), vcreate_u64(first + 2 * i + 1)))
}
GRADWIRE_INLINE U64 operator^(U64 a, U64 b) { GRADWIRE_LANES_(U64, veorq_u64(a.v[i], b.v[i])) }
GRADWIRE_INLINE U64 xor3(U64 a, U64 b, U64 c) { GRADWIRE_LANES_(U64, veorq_u64(veorq_u64(a.v[i], b.v[i]), c.v[i])) }
GRADWIRE_INLINE U64 high_half(U64 x) { GRADWIRE_LANES_(U64, vshrq_n_u64(x.v[i], 32)) }
GRADWIRE_INLINE U64 mul_low_halves(U64 a, U64 b) {
  GRADWIRE_LANES_(U64, vmull_u32(vmovn_u64(a.v[i]), vmovn_u64(b.v[i])))
}
GRADWIRE_INLINE void store_low_halves(std::uint32_t* p, U64 a, U64 b, U64 c, U64 d) {
  for (int i = 0; i < 4; ++i)
    vst4_u32(p + 8 * i, {{vmovn_u64(a.v[i]), vmovn_u64(b.v[i]), vmovn_u64(c.v[i]), vmovn_u64(d.v[i])}});
}

#undef GRADWIRE_LANES_

}  // namespace gradwire::neon
