// Adds the elements of tagged streams, or of some that hold them as they are, rank after rank to a part of the sum
// that stays in the L1 cache.
#pragma once

#include "kernels/inceptionn_quads.h"
#include "kernels/inceptionn_values.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kInceptionnSum = 2048;

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
  const U32 tags = spread_tags(packed);
  store(k.out + i, load(k.out + i, count) + inceptionn_value(tags, words, units) * set(k.scale), count);
}

static const std::uint8_t* add_tagged(const InceptionnAddDecoded& k, const InceptionnStream& s, const std::uint8_t* p,
                                      std::int64_t begin, std::int64_t end) {
  const Table4 units = units_of(k.bound);
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

void inceptionn_add_decoded(const InceptionnAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const InceptionnAddDecoded k = args;
  for (std::int64_t i = begin; i < end; i += kInceptionnSum) {
    const std::int64_t next = end - i < kInceptionnSum ? end : i + kInceptionnSum;
    for (std::int64_t w = 0; w < k.ranks; ++w) {
      const InceptionnStream& s = k.streams[w];
      if (s.tags) {
        const std::uint8_t* const begun = k.places[w];
        k.places[w] = add_tagged(k, s, begun, i, next);
        // By the time the other ranks are added, about as many bytes as now will be needed.
        prefetch_run(k.places[w], k.places[w] - begun);
        prefetch_run(s.tags + next / kQuad, kInceptionnSum / kQuad);
      } else
        add_floats(k, s, i, next);
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
