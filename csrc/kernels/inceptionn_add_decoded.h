// Adds the elements of tagged streams, or of some that hold them as they are, rank after rank to a part of the sum
// that stays in the L1 cache.
#pragma once

#include "kernels/inceptionn_quads.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kInceptionnSum = 2048;

// Without a shift that depends on the class, the sign would have to be looked for in two places.
GRADWIRE_INLINE F32 inceptionn_value(U32 tags, U32 words, Table4 units) {
  const U32 high = shl(words, select(eq(tags, set_u32(2)), set_u32(16), set_u32(24)));
  const F32 magnitude = from_i32(high & set_u32(0x7fffffff)) * lookup(units, tags);
  const U32 fixed = as_u32(magnitude) | (high & set_u32(0x80000000));
  return as_f32(select(eq(tags, set_u32(3)), words, fixed));
}

// What a stream from outside lacks is read as zero.
GRADWIRE_INLINE U32 load_last_quads(const std::uint8_t*& p, const std::uint8_t* end, std::uint32_t tags) {
  std::uint8_t bytes[5 * kQuadBytes] = {};
  if (end > p) std::memcpy(bytes, p, std::size_t(end - p < 4 * kQuadBytes ? end - p : 4 * kQuadBytes));
  const std::uint8_t* at = bytes;
  const U32 words = load_quads(at, tags);
  p = end - p < at - bytes ? end : p + (at - bytes);
  return words;
}

GRADWIRE_INLINE void add_tagged_step(const InceptionnAddDecoded& k, const InceptionnStream& s, const std::uint8_t*& p,
                                     Table4 units, std::int64_t i, int count) {
  const std::uint32_t packed = load_tags(s.tags + i / kQuad, count);
  const U32 words = s.end - p >= 4 * kQuadBytes ? load_quads(p, packed) : load_last_quads(p, s.end, packed);
  const U32 tags = shr(set_u32(packed), shl(iota(), 1)) & set_u32(3);
  store(k.out + i, load(k.out + i, count) + inceptionn_value(tags, words, units) * set(k.scale), count);
}

static const std::uint8_t* add_tagged(const InceptionnAddDecoded& k, const InceptionnStream& s, const std::uint8_t* p,
                                      std::int64_t begin, std::int64_t end) {
  const Table4 units = table4(0.0f, 0x1p-24f / float(1 << k.bound), 0x1p-31f, 0.0f);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) add_tagged_step(k, s, p, units, i, kLanes);
  if (i < end) add_tagged_step(k, s, p, units, i, int(end - i));
  return p;
}

static void add_floats(const InceptionnAddDecoded& k, const InceptionnStream& s, std::int64_t begin,
                       std::int64_t end) {
  const float* const x = reinterpret_cast<const float*>(s.codes);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) store(k.out + i, load(k.out + i) + load(x + i) * set(k.scale));
  const int rest = int(end - i);
  if (rest > 0) store(k.out + i, load(k.out + i, rest) + load(x + i, rest) * set(k.scale), rest);
}

static void inceptionn_add_decoded(const InceptionnAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const InceptionnAddDecoded k = args;
  for (std::int64_t i = begin; i < end; i += kInceptionnSum) {
    const std::int64_t next = end - i < kInceptionnSum ? end : i + kInceptionnSum;
    for (std::int64_t w = 0; w < k.ranks; ++w) {
      const InceptionnStream& s = k.streams[w];
      if (s.tags)
        k.places[w] = add_tagged(k, s, k.places[w], i, next);
      else
        add_floats(k, s, i, next);
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
