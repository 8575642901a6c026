// The vector types on AVX2: two registers each.
#pragma once

namespace gradwire::avx2 {

constexpr bool kFewRegisters = false;

struct F32 { __m256 lo, hi; };
struct U32 { __m256i lo, hi; };
struct Mask { __m256i lo, hi; };

GRADWIRE_INLINE Mask mask_(__m256 lo, __m256 hi) { return {_mm256_castps_si256(lo), _mm256_castps_si256(hi)}; }
GRADWIRE_INLINE __m256 ps_(__m256i x) { return _mm256_castsi256_ps(x); }

GRADWIRE_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
GRADWIRE_INLINE void store(float* p, F32 x) { _mm256_storeu_ps(p, x.lo), _mm256_storeu_ps(p + 8, x.hi); }
GRADWIRE_INLINE void store_past_cache(float* p, F32 x) { _mm256_stream_ps(p, x.lo), _mm256_stream_ps(p + 8, x.hi); }
GRADWIRE_INLINE void finish_stores() { _mm_sfence(); }
GRADWIRE_INLINE F32 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
GRADWIRE_INLINE F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
GRADWIRE_INLINE F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
GRADWIRE_INLINE F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
GRADWIRE_INLINE F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
GRADWIRE_INLINE F32 mul_add_exact(F32 a, F32 b, F32 c) { return a * b + c; }
GRADWIRE_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
GRADWIRE_INLINE F32 sqrt(F32 x) { return {_mm256_sqrt_ps(x.lo), _mm256_sqrt_ps(x.hi)}; }
GRADWIRE_INLINE Mask ge(F32 a, F32 b) {
  return mask_(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
}
GRADWIRE_INLINE Mask gt(F32 a, F32 b) {
  return mask_(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
}
GRADWIRE_INLINE Mask le(F32 a, F32 b) { return ge(b, a); }
GRADWIRE_INLINE Mask lt(F32 a, F32 b) { return gt(b, a); }
GRADWIRE_INLINE F32 select(Mask m, F32 yes, F32 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, ps_(m.lo)), _mm256_blendv_ps(no.hi, yes.hi, ps_(m.hi))};
}

template <int kDistance>
GRADWIRE_INLINE F32 swap_lanes(F32 x) {
  if constexpr (kDistance == 1) return {_mm256_permute_ps(x.lo, 0xb1), _mm256_permute_ps(x.hi, 0xb1)};
  if constexpr (kDistance == 2) return {_mm256_permute_ps(x.lo, 0x4e), _mm256_permute_ps(x.hi, 0x4e)};
  if constexpr (kDistance == 4) return {_mm256_permute2f128_ps(x.lo, x.lo, 1), _mm256_permute2f128_ps(x.hi, x.hi, 1)};
  if constexpr (kDistance == 8) return {x.hi, x.lo};
}

GRADWIRE_INLINE std::uint16_t bits(Mask m) {
  return std::uint16_t(_mm256_movemask_ps(ps_(m.lo)) | _mm256_movemask_ps(ps_(m.hi)) << 8);
}
GRADWIRE_INLINE Mask mask_of(std::uint16_t bits) {
  const __m256i one = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), all = _mm256_set1_epi32(bits);
  const __m256i lo = _mm256_and_si256(all, one), hi = _mm256_and_si256(_mm256_srli_epi32(all, 8), one);
  return {_mm256_cmpeq_epi32(lo, one), _mm256_cmpeq_epi32(hi, one)};
}
GRADWIRE_INLINE Mask operator&(Mask a, Mask b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
GRADWIRE_INLINE Mask and_not(Mask a, Mask b) {
  return {_mm256_andnot_si256(b.lo, a.lo), _mm256_andnot_si256(b.hi, a.hi)};
}

GRADWIRE_INLINE U32 as_u32(F32 x) { return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)}; }
GRADWIRE_INLINE F32 as_f32(U32 x) { return {ps_(x.lo), ps_(x.hi)}; }
GRADWIRE_INLINE U32 to_i32(F32 x) { return {_mm256_cvttps_epi32(x.lo), _mm256_cvttps_epi32(x.hi)}; }
GRADWIRE_INLINE F32 from_i32(U32 x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }

GRADWIRE_INLINE U32 set_u32(std::uint32_t x) { return {_mm256_set1_epi32(int(x)), _mm256_set1_epi32(int(x))}; }
GRADWIRE_INLINE U32 iota() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
GRADWIRE_INLINE U32 load_u32(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
GRADWIRE_INLINE U32 load_u16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
GRADWIRE_INLINE U32 load_u8(const void* p) {
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
GRADWIRE_INLINE U32 load_i8(const void* p) {
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
GRADWIRE_INLINE void store_u32(void* p, U32 x) {
  __m256i* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, x.lo), _mm256_storeu_si256(q + 1, x.hi);
}
// The packing instructions work within 128 bits: the permutation puts the lanes in order, and the masks prevent
// their saturation.
GRADWIRE_INLINE __m256i pack_u16_(U32 x) {
  const __m256i low = _mm256_set1_epi32(0xffff);
  return _mm256_permute4x64_epi64(
      _mm256_packus_epi32(_mm256_and_si256(x.lo, low), _mm256_and_si256(x.hi, low)), 0xd8);
}
GRADWIRE_INLINE __m256i pack_i8_(U32 a, U32 b) {
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a.lo, a.hi), _mm256_packs_epi32(b.lo, b.hi));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
GRADWIRE_INLINE void store_u16(void* p, U32 x) { _mm256_storeu_si256(static_cast<__m256i*>(p), pack_u16_(x)); }
GRADWIRE_INLINE void store_u8(void* p, U32 x) {
  const __m256i y = _mm256_and_si256(pack_u16_(x), _mm256_set1_epi16(0xff));
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)));
}
// Four vectors of numbers from -128 to 127, as 64 bytes.
GRADWIRE_INLINE void store_i8(void* p, U32 a, U32 b, U32 c, U32 d) {
  __m256i* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, pack_i8_(a, b)), _mm256_storeu_si256(q + 1, pack_i8_(c, d));
}
GRADWIRE_INLINE void store_u4(void* p, U32 a, U32 b, U32 c, U32 d) {
  const __m256i low = _mm256_set1_epi8(15), weights = _mm256_set1_epi16(0x1001);
  const __m256i ab = _mm256_maddubs_epi16(_mm256_and_si256(pack_i8_(a, b), low), weights);
  const __m256i cd = _mm256_maddubs_epi16(_mm256_and_si256(pack_i8_(c, d), low), weights);
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(_mm256_packus_epi16(ab, cd), 0xd8));
}
// The low two bits of each lane, four lanes to a byte, the first lowest.
GRADWIRE_INLINE __m256i join_u2_(U32 a, U32 b) {
  const __m256i crumbs = _mm256_and_si256(pack_i8_(a, b), _mm256_set1_epi8(3));
  const __m256i nibbles = _mm256_maddubs_epi16(crumbs, _mm256_set1_epi16(0x0401));
  return _mm256_madd_epi16(nibbles, _mm256_set1_epi32(0x00100001));
}
GRADWIRE_INLINE void store_u2(void* p, U32 a, U32 b, U32 c, U32 d) {
  const __m256i halves = _mm256_packus_epi32(join_u2_(a, b), join_u2_(c, d));
  const __m256i bytes = _mm256_packus_epi16(halves, halves);
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}
GRADWIRE_INLINE void store_u4(void* p, U32 x) {
  const __m256i y = _mm256_and_si256(pack_u16_(x), _mm256_set1_epi16(15));
  const __m128i nibbles = _mm_packus_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
  const __m128i pairs = _mm_maddubs_epi16(nibbles, _mm_set1_epi16(0x1001));
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packus_epi16(pairs, pairs));
}

#define GRADWIRE_LANEWISE_(name, op) \
  GRADWIRE_INLINE U32 name(U32 a, U32 b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
GRADWIRE_LANEWISE_(operator+, _mm256_add_epi32)
GRADWIRE_LANEWISE_(operator-, _mm256_sub_epi32)
GRADWIRE_LANEWISE_(operator*, _mm256_mullo_epi32)
GRADWIRE_LANEWISE_(operator&, _mm256_and_si256)
GRADWIRE_LANEWISE_(operator|, _mm256_or_si256)
GRADWIRE_LANEWISE_(operator^, _mm256_xor_si256)
GRADWIRE_LANEWISE_(shl, _mm256_sllv_epi32)
GRADWIRE_LANEWISE_(shr, _mm256_srlv_epi32)
GRADWIRE_LANEWISE_(max_u32, _mm256_max_epu32)
GRADWIRE_LANEWISE_(min_u32, _mm256_min_epu32)
#undef GRADWIRE_LANEWISE_
GRADWIRE_INLINE U32 shl(U32 x, int n) { return {_mm256_slli_epi32(x.lo, n), _mm256_slli_epi32(x.hi, n)}; }
GRADWIRE_INLINE U32 shr(U32 x, int n) { return {_mm256_srli_epi32(x.lo, n), _mm256_srli_epi32(x.hi, n)}; }
GRADWIRE_INLINE U32 sar(U32 x, int n) { return {_mm256_srai_epi32(x.lo, n), _mm256_srai_epi32(x.hi, n)}; }
GRADWIRE_INLINE Mask eq(U32 a, U32 b) { return {_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi)}; }
GRADWIRE_INLINE Mask ge(U32 a, U32 b) { return eq(max_u32(a, b), a); }
GRADWIRE_INLINE Mask gt(U32 a, U32 b) {
  const U32 sign = set_u32(0x80000000), p = a ^ sign, q = b ^ sign;
  return {_mm256_cmpgt_epi32(p.lo, q.lo), _mm256_cmpgt_epi32(p.hi, q.hi)};
}
GRADWIRE_INLINE U32 select(Mask m, U32 yes, U32 no) {
  return {_mm256_blendv_epi8(no.lo, yes.lo, m.lo), _mm256_blendv_epi8(no.hi, yes.hi, m.hi)};
}
GRADWIRE_INLINE std::uint32_t reduce_max(U32 x) {
  const __m256i y = _mm256_max_epu32(x.lo, x.hi);
  __m128i z = _mm_max_epu32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
  z = _mm_max_epu32(z, _mm_shuffle_epi32(z, 0x4e));
  return std::uint32_t(_mm_cvtsi128_si32(_mm_max_epu32(z, _mm_shuffle_epi32(z, 0xb1))));
}

struct Table4 { __m256 v; };
GRADWIRE_INLINE Table4 table4(float a, float b, float c, float d) { return {_mm256_setr_ps(a, b, c, d, a, b, c, d)}; }
GRADWIRE_INLINE F32 lookup(Table4 t, U32 index) {
  return {_mm256_permutevar_ps(t.v, index.lo), _mm256_permutevar_ps(t.v, index.hi)};
}

struct Table16 { __m256 lo, hi; };
GRADWIRE_INLINE Table16 table16(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
GRADWIRE_INLINE __m256 lookup_(Table16 t, __m256i index) {
  const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.lo, index), _mm256_permutevar8x32_ps(t.hi, index), upper);
}
GRADWIRE_INLINE F32 lookup(Table16 t, U32 index) { return {lookup_(t, index.lo), lookup_(t, index.hi)}; }

struct Table128 { const float* values; };
GRADWIRE_INLINE Table128 table128(const float* p) { return {p}; }
GRADWIRE_INLINE F32 lookup(const Table128& t, U32 index) {
  const __m256i low = _mm256_set1_epi32(127);
  return {_mm256_i32gather_ps(t.values, _mm256_and_si256(index.lo, low), 4),
          _mm256_i32gather_ps(t.values, _mm256_and_si256(index.hi, low), 4)};
}

GRADWIRE_INLINE F32 load_f16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
GRADWIRE_INLINE void store_f16(void* p, F32 x) {
  __m128i* q = static_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
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
struct Fronts { std::uint64_t lanes[256]; };
constexpr Fronts fronts_() {
  Fronts f = {};
  for (unsigned bits = 0; bits < 256; ++bits)
    for (unsigned lane = 0, count = 0; lane < 8; ++lane)
      if (bits >> lane & 1) f.lanes[bits] |= std::uint64_t(lane) << 8 * count++;
  return f;
}
constexpr Fronts kFronts = fronts_();  // by the bits of a mask, the selected lanes of 8, a byte each
GRADWIRE_INLINE __m256i front_(__m256i x, unsigned bits) {
  const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kFronts.lanes[bits]));
  return _mm256_permutevar8x32_epi32(x, _mm256_cvtepu8_epi32(lanes));
}
GRADWIRE_INLINE int store_front(std::uint32_t* p, U32 x, Mask m) {
  const unsigned lo = unsigned(_mm256_movemask_ps(ps_(m.lo))), hi = unsigned(_mm256_movemask_ps(ps_(m.hi)));
  const int first = __builtin_popcount(lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), front_(x.lo, lo));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + first), front_(x.hi, hi));
  return first + __builtin_popcount(hi);
}
// The same for masks that rarely select more than four lanes: it then writes little.
GRADWIRE_INLINE int store_few(std::uint32_t* p, U32 x, Mask m) { return store_front(p, x, m); }
GRADWIRE_INLINE __m128i front_u16_(__m128i x, unsigned bits) {
  const __m128i lane = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kFronts.lanes[bits]));
  const __m128i low = _mm_add_epi8(lane, lane), high = _mm_add_epi8(low, _mm_set1_epi8(1));
  return _mm_shuffle_epi8(x, _mm_unpacklo_epi8(low, high));
}
GRADWIRE_INLINE int store_front_u16(void* p, U32 x, Mask m) {
  const unsigned lo = unsigned(_mm256_movemask_ps(ps_(m.lo))), hi = unsigned(_mm256_movemask_ps(ps_(m.hi)));
  const int first = __builtin_popcount(lo);
  const __m256i halves = pack_u16_(x);
  std::uint16_t* const q = static_cast<std::uint16_t*>(p);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), front_u16_(_mm256_castsi256_si128(halves), lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q + first), front_u16_(_mm256_extracti128_si256(halves, 1), hi));
  return first + __builtin_popcount(hi);
}

// Bytes of `places` name bytes of 16 others; 0x80 names a zero.
GRADWIRE_INLINE __m128i shuffled_(__m128i bytes, const std::uint8_t* places) {
  return _mm_shuffle_epi8(bytes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(places)));
}
GRADWIRE_INLINE __m128i shuffled_(const std::uint8_t* from, const std::uint8_t* places) {
  return shuffled_(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), places);
}
GRADWIRE_INLINE void store_shuffled_(std::uint8_t* to, __m128i bytes, const std::uint8_t* places) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), shuffled_(bytes, places));
}
// Each four lanes from 16 bytes of their own.
GRADWIRE_INLINE U32 shuffled_bytes(const std::uint8_t* const (&from)[4], const std::uint8_t* const (&places)[4]) {
  return {_mm256_inserti128_si256(_mm256_castsi128_si256(shuffled_(from[0], places[0])),
                                  shuffled_(from[1], places[1]), 1),
          _mm256_inserti128_si256(_mm256_castsi128_si256(shuffled_(from[2], places[2])),
                                  shuffled_(from[3], places[3]), 1)};
}
// 16 bytes of four lanes, as `places` names them, to each `to`, in that order: later ones may overwrite the former.
GRADWIRE_INLINE void store_shuffled(std::uint8_t* const (&to)[4], U32 x, const std::uint8_t* const (&places)[4]) {
  const __m128i quads[4] = {_mm256_castsi256_si128(x.lo), _mm256_extracti128_si256(x.lo, 1),
                            _mm256_castsi256_si128(x.hi), _mm256_extracti128_si256(x.hi, 1)};
  for (int i = 0; i < 4; ++i) store_shuffled_(to[i], quads[i], places[i]);
}

// Words of a table by their places.
#define GRADWIRE_LOOKUP_WORDS
GRADWIRE_INLINE U32 lookup_words(const std::uint32_t* table, U32 place) {
  const int* const words = reinterpret_cast<const int*>(table);
  return {_mm256_i32gather_epi32(words, place.lo, 4), _mm256_i32gather_epi32(words, place.hi, 4)};
}
// To each selected lane the next 16 bits: to the first eight lanes of those at p[0], to the others of those at p[1],
// which move on. What the rest gets is of no meaning; 16 bytes are read at each.
struct Befores { std::uint64_t lanes[256]; };
constexpr Befores befores_() {
  Befores b = {};
  for (unsigned bits = 0; bits < 256; ++bits)
    for (unsigned lane = 0, count = 0; lane < 8; count += bits >> lane++ & 1)
      b.lanes[bits] |= std::uint64_t(count) << 8 * lane;
  return b;
}
constexpr Befores kBefores = befores_();  // by the bits of a mask, how many are selected before each of 8 lanes
GRADWIRE_INLINE __m256i next_words_(const std::uint8_t*& p, __m256i m) {
  const unsigned bits = unsigned(_mm256_movemask_ps(ps_(m)));
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kBefores.lanes[bits]));
  p += 2 * __builtin_popcount(bits);
  return _mm256_permutevar8x32_epi32(words, _mm256_cvtepu8_epi32(lanes));
}
GRADWIRE_INLINE U32 take_words(const std::uint8_t* (&p)[2], Mask m) {
  return {next_words_(p[0], m.lo), next_words_(p[1], m.hi)};
}

struct U64 { __m256i lo, hi; };
constexpr int kPhiloxBatches = 2;
constexpr bool kPhiloxInterleaved = true;  // with the work that the numbers are for
GRADWIRE_INLINE U64 set_u64(std::uint64_t x) {
  const __m256i all = _mm256_set1_epi64x(std::int64_t(x));
  return {all, all};
}
GRADWIRE_INLINE U64 count_u64(std::uint64_t first) {
  const __m256i all = _mm256_set1_epi64x(std::int64_t(first));
  return {_mm256_add_epi64(all, _mm256_setr_epi64x(0, 1, 2, 3)), _mm256_add_epi64(all, _mm256_setr_epi64x(4, 5, 6, 7))};
}
GRADWIRE_INLINE U64 operator^(U64 a, U64 b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
GRADWIRE_INLINE U64 xor3(U64 a, U64 b, U64 c) {
  return {_mm256_xor_si256(_mm256_xor_si256(a.lo, b.lo), c.lo), _mm256_xor_si256(_mm256_xor_si256(a.hi, b.hi), c.hi)};
}
GRADWIRE_INLINE U64 high_half(U64 x) { return {_mm256_srli_epi64(x.lo, 32), _mm256_srli_epi64(x.hi, 32)}; }
GRADWIRE_INLINE U64 mul_low_halves(U64 a, U64 b) {
  return {_mm256_mul_epu32(a.lo, b.lo), _mm256_mul_epu32(a.hi, b.hi)};
}

GRADWIRE_INLINE void store_low_halves_(std::uint32_t* p, __m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa);
  const __m256i cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), 0xaa);
  const __m256i even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
  __m256i* q = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(q, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(q + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}
GRADWIRE_INLINE void store_low_halves(std::uint32_t* p, U64 a, U64 b, U64 c, U64 d) {
  store_low_halves_(p, a.lo, b.lo, c.lo, d.lo), store_low_halves_(p + 16, a.hi, b.hi, c.hi, d.hi);
}

}  // namespace gradwire::avx2
