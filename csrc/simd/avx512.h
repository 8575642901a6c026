// The vector types on AVX-512: one register each.
#pragma once

namespace gradwire::avx512 {

constexpr bool kFewRegisters = false;

struct F32 { __m512 v; };
struct U32 { __m512i v; };
struct Mask { __mmask16 v; };

GRADWIRE_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
GRADWIRE_INLINE void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
GRADWIRE_INLINE void store_past_cache(float* p, F32 x) { _mm512_stream_ps(p, x.v); }
GRADWIRE_INLINE void finish_stores() { _mm_sfence(); }
GRADWIRE_INLINE F32 set(float x) { return {_mm512_set1_ps(x)}; }
GRADWIRE_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
GRADWIRE_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
GRADWIRE_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
GRADWIRE_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
GRADWIRE_INLINE F32 mul_add_exact(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
GRADWIRE_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
GRADWIRE_INLINE F32 sqrt(F32 x) { return {_mm512_sqrt_ps(x.v)}; }
GRADWIRE_INLINE Mask ge(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
GRADWIRE_INLINE Mask gt(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
GRADWIRE_INLINE Mask le(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
GRADWIRE_INLINE Mask lt(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
GRADWIRE_INLINE F32 select(Mask m, F32 yes, F32 no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }

template <int kDistance>
GRADWIRE_INLINE F32 swap_lanes(F32 x) {
  if constexpr (kDistance == 1) return {_mm512_permute_ps(x.v, 0xb1)};
  if constexpr (kDistance == 2) return {_mm512_permute_ps(x.v, 0x4e)};
  if constexpr (kDistance == 4) return {_mm512_shuffle_f32x4(x.v, x.v, 0xb1)};
  if constexpr (kDistance == 8) return {_mm512_shuffle_f32x4(x.v, x.v, 0x4e)};
}

GRADWIRE_INLINE std::uint16_t bits(Mask m) { return m.v; }
GRADWIRE_INLINE Mask mask_of(std::uint16_t bits) { return {bits}; }
GRADWIRE_INLINE Mask operator&(Mask a, Mask b) { return {__mmask16(a.v & b.v)}; }
GRADWIRE_INLINE Mask and_not(Mask a, Mask b) { return {__mmask16(a.v & ~b.v)}; }

GRADWIRE_INLINE U32 as_u32(F32 x) { return {_mm512_castps_si512(x.v)}; }
GRADWIRE_INLINE F32 as_f32(U32 x) { return {_mm512_castsi512_ps(x.v)}; }
GRADWIRE_INLINE U32 to_i32(F32 x) { return {_mm512_cvttps_epi32(x.v)}; }
GRADWIRE_INLINE F32 from_i32(U32 x) { return {_mm512_cvtepi32_ps(x.v)}; }

GRADWIRE_INLINE U32 set_u32(std::uint32_t x) { return {_mm512_set1_epi32(int(x))}; }
GRADWIRE_INLINE U32 iota() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
GRADWIRE_INLINE U32 load_u32(const void* p) { return {_mm512_loadu_si512(p)}; }
GRADWIRE_INLINE U32 load_u16(const void* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
GRADWIRE_INLINE U32 load_i8(const void* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
GRADWIRE_INLINE U32 load_u8(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
GRADWIRE_INLINE void store_u32(void* p, U32 x) { _mm512_storeu_si512(p, x.v); }
GRADWIRE_INLINE void store_u16(void* p, U32 x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}
GRADWIRE_INLINE void store_u8(void* p, U32 x) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
// Four vectors of numbers from -128 to 127, as 64 bytes.
GRADWIRE_INLINE __m512i pack_i8_(U32 a, U32 b, U32 c, U32 d) {
  const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i lo = _mm512_packs_epi32(a.v, b.v), hi = _mm512_packs_epi32(c.v, d.v);
  return _mm512_permutexvar_epi32(words, _mm512_packs_epi16(lo, hi));
}
GRADWIRE_INLINE void store_i8(void* p, U32 a, U32 b, U32 c, U32 d) { _mm512_storeu_si512(p, pack_i8_(a, b, c, d)); }
GRADWIRE_INLINE void store_u4(void* p, U32 a, U32 b, U32 c, U32 d) {
  const __m512i nibbles = _mm512_and_si512(pack_i8_(a, b, c, d), _mm512_set1_epi8(15));
  const __m512i pairs = _mm512_maddubs_epi16(nibbles, _mm512_set1_epi16(0x1001));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi16_epi8(pairs));
}
// The low two bits of each lane, four lanes to a byte, the first lowest.
GRADWIRE_INLINE void store_u2(void* p, U32 a, U32 b, U32 c, U32 d) {
  const __m512i crumbs = _mm512_and_si512(pack_i8_(a, b, c, d), _mm512_set1_epi8(3));
  const __m512i nibbles = _mm512_maddubs_epi16(crumbs, _mm512_set1_epi16(0x0401));
  const __m512i bytes = _mm512_madd_epi16(nibbles, _mm512_set1_epi32(0x00100001));
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(bytes));
}
// The low four bits of each lane, two lanes to a byte, the first in the lower half.
GRADWIRE_INLINE void store_u4(void* p, U32 x) {
  const __m512i nibbles = _mm512_and_si512(x.v, _mm512_set1_epi32(15));
  const __m512i pairs = _mm512_or_si512(nibbles, _mm512_srli_epi64(nibbles, 28));
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm512_cvtepi64_epi8(pairs));
}

GRADWIRE_INLINE U32 operator+(U32 a, U32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
GRADWIRE_INLINE U32 operator-(U32 a, U32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
GRADWIRE_INLINE U32 operator*(U32 a, U32 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
GRADWIRE_INLINE U32 operator&(U32 a, U32 b) { return {_mm512_and_si512(a.v, b.v)}; }
GRADWIRE_INLINE U32 operator|(U32 a, U32 b) { return {_mm512_or_si512(a.v, b.v)}; }
GRADWIRE_INLINE U32 operator^(U32 a, U32 b) { return {_mm512_xor_si512(a.v, b.v)}; }
GRADWIRE_INLINE U32 shl(U32 x, int n) { return {_mm512_slli_epi32(x.v, unsigned(n))}; }
GRADWIRE_INLINE U32 shr(U32 x, int n) { return {_mm512_srli_epi32(x.v, unsigned(n))}; }
GRADWIRE_INLINE U32 shl(U32 x, U32 n) { return {_mm512_sllv_epi32(x.v, n.v)}; }
GRADWIRE_INLINE U32 shr(U32 x, U32 n) { return {_mm512_srlv_epi32(x.v, n.v)}; }
GRADWIRE_INLINE U32 sar(U32 x, int n) { return {_mm512_srai_epi32(x.v, unsigned(n))}; }
GRADWIRE_INLINE U32 max_u32(U32 a, U32 b) { return {_mm512_max_epu32(a.v, b.v)}; }
GRADWIRE_INLINE U32 min_u32(U32 a, U32 b) { return {_mm512_min_epu32(a.v, b.v)}; }
GRADWIRE_INLINE Mask eq(U32 a, U32 b) { return {_mm512_cmpeq_epu32_mask(a.v, b.v)}; }
GRADWIRE_INLINE Mask ge(U32 a, U32 b) { return {_mm512_cmpge_epu32_mask(a.v, b.v)}; }
GRADWIRE_INLINE Mask gt(U32 a, U32 b) { return {_mm512_cmpgt_epu32_mask(a.v, b.v)}; }
GRADWIRE_INLINE U32 select(Mask m, U32 yes, U32 no) { return {_mm512_mask_blend_epi32(m.v, no.v, yes.v)}; }
GRADWIRE_INLINE std::uint32_t reduce_max(U32 x) { return _mm512_reduce_max_epu32(x.v); }

// Four values, looked up by the low two bits of each lane.
struct Table4 { __m512 v; };
GRADWIRE_INLINE Table4 table4(float a, float b, float c, float d) { return {_mm512_set4_ps(d, c, b, a)}; }
GRADWIRE_INLINE F32 lookup(Table4 t, U32 index) { return {_mm512_permutexvar_ps(index.v, t.v)}; }

// 16 values, looked up by the low four bits of each lane.
struct Table16 { __m512 v; };
GRADWIRE_INLINE Table16 table16(const float* p) { return {_mm512_loadu_ps(p)}; }
GRADWIRE_INLINE F32 lookup(Table16 t, U32 index) { return {_mm512_permutexvar_ps(index.v, t.v)}; }

// 128 values in registers, looked up by the low seven bits of each lane: a gather takes four times as long.
struct Table128 { __m512 v[8]; };
GRADWIRE_INLINE Table128 table128(const float* p) {
  Table128 t;
  for (int i = 0; i < 8; ++i) t.v[i] = _mm512_loadu_ps(p + 16 * i);
  return t;
}
GRADWIRE_INLINE F32 lookup(const Table128& t, U32 index) {
  __m512 quarter[4];
  for (int i = 0; i < 4; ++i) quarter[i] = _mm512_permutex2var_ps(t.v[2 * i], index.v, t.v[2 * i + 1]);
  const __mmask16 odd = _mm512_test_epi32_mask(index.v, _mm512_set1_epi32(32));
  const __m512 low = _mm512_mask_blend_ps(odd, quarter[0], quarter[1]);
  const __m512 high = _mm512_mask_blend_ps(odd, quarter[2], quarter[3]);
  return {_mm512_mask_blend_ps(_mm512_test_epi32_mask(index.v, _mm512_set1_epi32(64)), low, high)};
}

// 128 values by their halves: half as many steps as looking up whole ones, 32 at a time.
#define GRADWIRE_HALVES_TABLE
struct HalvesTable { __m512i low[4], high[4]; };
// The halves of 32 values.
GRADWIRE_INLINE void split_(const float* p, __m512i& low, __m512i& high) {
  const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 16);
  low = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)), _mm512_cvtepi32_epi16(b), 1);
  high = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16))),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16)), 1);
}
GRADWIRE_INLINE HalvesTable halves_table(const float* p) {
  HalvesTable t;
  for (int i = 0; i < 4; ++i) split_(p + 32 * i, t.low[i], t.high[i]);
  return t;
}
GRADWIRE_INLINE __m512i halves_(const __m512i (&t)[4], __m512i index, __mmask32 upper, __mmask32 any) {
  return _mm512_mask_blend_epi16(upper, _mm512_maskz_permutex2var_epi16(any, t[0], index, t[1]),
                                 _mm512_maskz_permutex2var_epi16(any, t[2], index, t[3]));
}
// 32 bytes as words, in the order in which halves_as_floats_ interleaves them.
GRADWIRE_INLINE __m512i spread_bytes_(const std::uint8_t* p) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}
GRADWIRE_INLINE void halves_as_floats_(__m512i low, __m512i high, __mmask32 minus, F32& first, F32& second) {
  const __m512i with_sign = _mm512_mask_add_epi16(high, minus, high, _mm512_set1_epi16(std::int16_t(0x8000)));
  first = {_mm512_castsi512_ps(_mm512_unpacklo_epi16(low, with_sign))};
  second = {_mm512_castsi512_ps(_mm512_unpackhi_epi16(low, with_sign))};
}
// The values of 32 bytes, of which the low seven bits are an index and the highest is a sign.
GRADWIRE_INLINE void lookup_signed(const HalvesTable& t, const std::uint8_t* p, F32& first, F32& second) {
  const __m512i index = spread_bytes_(p);
  const __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64)), all = ~__mmask32{0};
  halves_as_floats_(halves_(t.low, index, upper, all), halves_(t.high, index, upper, all),
                    _mm512_test_epi16_mask(index, _mm512_set1_epi16(128)), first, second);
}
// The values of 32 bytes that count from 127, which stands for zero, upwards, and downwards with a sign.
GRADWIRE_INLINE void lookup_centred(const HalvesTable& t, const std::uint8_t* p, F32& first, F32& second) {
  const __m512i code = spread_bytes_(p), zero = _mm512_set1_epi16(127);
  const __mmask32 minus = _mm512_cmplt_epu16_mask(code, zero), any = _mm512_cmpneq_epu16_mask(code, zero);
  const __m512i index = _mm512_mask_sub_epi16(code, minus, _mm512_set1_epi16(126), code);
  const __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
  halves_as_floats_(halves_(t.low, index, upper, any), halves_(t.high, index, upper, any), minus, first, second);
}

GRADWIRE_INLINE F32 load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
GRADWIRE_INLINE void store_f16(void* p, F32 x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// The selected lanes, side by side; memory beyond them is not written. Returns how many there are.
GRADWIRE_INLINE int store_selected(std::uint32_t* p, U32 x, Mask m) {
  const int count = _mm_popcnt_u32(m.v);
  _mm512_mask_storeu_epi32(p, __mmask16((1u << count) - 1), _mm512_maskz_compress_epi32(m.v, x.v));
  return count;
}
GRADWIRE_INLINE int store_selected_u16(void* p, U32 x, Mask m) {
  const int count = _mm_popcnt_u32(m.v);
  const __m256i halves = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(m.v, x.v));
  _mm256_mask_storeu_epi16(p, __mmask16((1u << count) - 1), halves);
  return count;
}

// The selected lanes side by side, for bulk: up to 16 words from p on are overwritten. Returns how many are selected.
GRADWIRE_INLINE int store_front(std::uint32_t* p, U32 x, Mask m) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(m.v, x.v));
  return _mm_popcnt_u32(m.v);
}
// The same for masks that rarely select more than four lanes: it then writes little.
GRADWIRE_INLINE int store_few(std::uint32_t* p, U32 x, Mask m) {
  const __m512i front = _mm512_maskz_compress_epi32(m.v, x.v);
  const int count = _mm_popcnt_u32(m.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_castsi512_si128(front));
  if (__builtin_expect(count > 4, 0)) _mm512_storeu_si512(p, front);
  return count;
}
GRADWIRE_INLINE int store_front_u16(void* p, U32 x, Mask m) {
  store_u16(p, {_mm512_maskz_compress_epi32(m.v, x.v)});
  return _mm_popcnt_u32(m.v);
}

// 8 uint64.
struct U64 { __m512i v; };
constexpr int kPhiloxBatches = 4;
constexpr bool kPhiloxInterleaved = true;  // with the work that the numbers are for
GRADWIRE_INLINE U64 set_u64(std::uint64_t x) { return {_mm512_set1_epi64(std::int64_t(x))}; }
GRADWIRE_INLINE U64 count_u64(std::uint64_t first) {
  return {_mm512_add_epi64(set_u64(first).v, _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7))};
}
GRADWIRE_INLINE U64 operator^(U64 a, U64 b) { return {_mm512_xor_si512(a.v, b.v)}; }
GRADWIRE_INLINE U64 xor3(U64 a, U64 b, U64 c) { return {_mm512_ternarylogic_epi64(a.v, b.v, c.v, 0x96)}; }
GRADWIRE_INLINE U64 high_half(U64 x) { return {_mm512_shuffle_epi32(x.v, _MM_PERM_DDBB)}; }
GRADWIRE_INLINE U64 mul_low_halves(U64 a, U64 b) { return {_mm512_mul_epu32(a.v, b.v)}; }

// The low halves, as a[0] b[0] c[0] d[0] a[1] ...: 32 words.
GRADWIRE_INLINE void store_low_halves(std::uint32_t* p, U64 a, U64 b, U64 c, U64 d) {
  const __m512i ab = _mm512_mask_shuffle_epi32(a.v, 0xaaaa, b.v, _MM_PERM_CCAA);
  const __m512i cd = _mm512_mask_shuffle_epi32(c.v, 0xaaaa, d.v, _MM_PERM_CCAA);
  _mm512_storeu_si512(p, _mm512_permutex2var_epi64(ab, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), cd));
  _mm512_storeu_si512(p + 16, _mm512_permutex2var_epi64(ab, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), cd));
}

// Not so on AVX2: the CPUs of AMD before Zen 3 take hundreds of cycles, and have no AVX-512.
#define GRADWIRE_FAST_BITS
GRADWIRE_INLINE std::uint64_t gather_bits(std::uint64_t x, std::uint64_t mask) { return _pext_u64(x, mask); }
GRADWIRE_INLINE std::uint64_t scatter_bits(std::uint64_t x, std::uint64_t mask) { return _pdep_u64(x, mask); }

}  // namespace gradwire::avx512
