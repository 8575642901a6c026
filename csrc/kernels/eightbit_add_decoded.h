// Adds the 8-bit payloads of all ranks, one after the other, with the sums in registers.
#pragma once

#include "kernels/eightbit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kEightbitSums = 4;
constexpr int kEightbitRanks = 64;  // whose steps are kept at once
constexpr int kCodesAhead = 512;    // bytes that are asked for early: a CPU does not foresee where many streams go on

// What looks up the values of two vectors of codes, in the form that is fastest on the target.
template <Codebook kind>
struct EightbitPairs {
  Book book;
#if defined(GRADWIRE_HALVES_TABLE)
  HalvesTable halves;
#endif
};

template <Codebook kind>
GRADWIRE_INLINE EightbitPairs<kind> eightbit_pairs(const float* values) {
  EightbitPairs<kind> pairs;
  pairs.book = book_of(values);
#if defined(GRADWIRE_HALVES_TABLE)
  alignas(64) float found[128];
  magnitudes<kind>(values, found);
  pairs.halves = halves_table(found);
#endif
  return pairs;
}

template <Codebook kind>
GRADWIRE_INLINE void look_up(const EightbitPairs<kind>& pairs, const std::uint8_t* codes, F32& first, F32& second) {
#if defined(GRADWIRE_HALVES_TABLE)
  if constexpr (kind == Codebook::dynamic) return lookup_centred(pairs.halves, codes, first, second);
  if constexpr (kind == Codebook::e4m3 || kind == Codebook::e5m2)
    return lookup_signed(pairs.halves, codes, first, second);
#endif
  first = value_of<kind>(codes, pairs.book, kLanes), second = value_of<kind>(codes + kLanes, pairs.book, kLanes);
}

// A part of the tensor in which each of some ranks has one step.
struct EightbitPart {
  float* out;
  const std::uint8_t* codes;  // of the first rank
  std::int64_t stride, ranks;
  const float* steps;
};

template <Codebook kind>
GRADWIRE_INLINE void eightbit_add_vectors(const EightbitPart& part, std::int64_t i, const EightbitPairs<kind>& pairs) {
  F32 sums[kEightbitSums];
  for (int v = 0; v < kEightbitSums; ++v) sums[v] = load_ahead(part.out + i + v * kLanes, kLanes);
  const std::uint8_t* codes = part.codes + i;
  for (std::int64_t w = 0; w < part.ranks; ++w, codes += part.stride) {
    const F32 step = set(part.steps[w]);
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(codes) + kCodesAhead));
    for (int v = 0; v < kEightbitSums; v += 2) {
      F32 first, second;
      look_up<kind>(pairs, codes + v * kLanes, first, second);
      sums[v] = sums[v] + step * first, sums[v + 1] = sums[v + 1] + step * second;
    }
  }
  for (int v = 0; v < kEightbitSums; ++v) store(part.out + i + v * kLanes, sums[v]);
}

template <Codebook kind>
GRADWIRE_INLINE void eightbit_add(const EightbitPart& part, const EightbitPairs<kind>& pairs, std::int64_t count) {
  std::int64_t i = 0;
  for (; count - i >= kEightbitSums * kLanes; i += kEightbitSums * kLanes) eightbit_add_vectors<kind>(part, i, pairs);
  for (; i < count; i += kLanes) {
    const int lanes = count - i < kLanes ? int(count - i) : kLanes;
    F32 sum = load(part.out + i, lanes);
    for (std::int64_t w = 0; w < part.ranks; ++w)
      sum = sum + set(part.steps[w]) * value_of<kind>(part.codes + w * part.stride + i, pairs.book, lanes);
    store(part.out + i, sum, lanes);
  }
}

template <Codebook kind>
GRADWIRE_INLINE void eightbit_add_block(const EightbitAddDecoded& k, const EightbitPairs<kind>& pairs,
                                        std::int64_t block, std::int64_t begin, std::int64_t end) {
  float steps[kEightbitRanks];
  for (std::int64_t first = 0; first < k.codes.count; first += kEightbitRanks) {
    const std::int64_t left = k.codes.count - first, ranks = left < kEightbitRanks ? left : kEightbitRanks;
    for (std::int64_t w = 0; w < ranks; ++w) {
      float norm;
      const std::uint8_t* const scales = k.scales.data + (first + w) * k.scales.stride;
      std::memcpy(&norm, scales + block * std::int64_t(sizeof norm), sizeof norm);
      steps[w] = norm / kLargest<kind> * k.scale;
    }
    const std::uint8_t* const codes = k.codes.data + first * k.codes.stride + begin;
    eightbit_add<kind>({k.out + begin, codes, k.codes.stride, ranks, steps}, pairs, end - begin);
  }
}

// More ranks than have steps at once go over a part that stays in a cache.
constexpr std::int64_t kEightbitPart = 4096;

template <Codebook kind>
static void eightbit_add_range(const EightbitAddDecoded& k, std::int64_t begin, std::int64_t end) {
  const EightbitPairs<kind> pairs = eightbit_pairs<kind>(k.book);
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = k.block ? i / k.block : 0, after = k.block ? (block + 1) * k.block : end;
    const std::int64_t stop = after < end ? after : end, next = stop < i + kEightbitPart ? stop : i + kEightbitPart;
    eightbit_add_block<kind>(k, pairs, block, i, next);
    i = next;
  }
}

void eightbit_add_decoded(const EightbitAddDecoded& args, std::int64_t begin, std::int64_t end) {
  constexpr decltype(&eightbit_add_range<Codebook::linear>) add[] = {
      eightbit_add_range<Codebook::linear>, eightbit_add_range<Codebook::dynamic>, eightbit_add_range<Codebook::e4m3>,
      eightbit_add_range<Codebook::e5m2>};
  const EightbitAddDecoded k = args;
  add[int(k.kind)](k, begin, end);
}

}  // namespace gradwire::GRADWIRE_TARGET
