// Decodes chunks of rANS: the states of two chunks in the lanes of a vector, and two such vectors in turns, since one
// alone would wait for what it looks up. On targets that look up lanes one by one, nothing is done here.
#pragma once

#include "rans.h"
#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

#if defined(GRADWIRE_LOOKUP_WORDS)

struct RansPair {
  U32 x;
  const std::uint8_t* at[2];
  std::uint8_t* symbols[2];
};

GRADWIRE_INLINE RansPair rans_pair(const RansChunk* chunks) {
  std::uint32_t states[kLanes];
  RansPair pair;
  for (int i = 0; i < 2; ++i) {
    std::memcpy(states + i * kRansStates, chunks[i].states, sizeof chunks[i].states);
    pair.at[i] = chunks[i].at, pair.symbols[i] = chunks[i].symbols + chunks[i].done;
  }
  pair.x = load_u32(states);
  return pair;
}

GRADWIRE_INLINE void leave_rans(const RansPair& pair, RansChunk* chunks) {
  std::uint32_t states[kLanes];
  store_u32(states, pair.x);
  for (int i = 0; i < 2; ++i) {
    std::memcpy(chunks[i].states, states + i * kRansStates, sizeof chunks[i].states);
    chunks[i].at = pair.at[i], chunks[i].done = pair.symbols[i] - chunks[i].symbols;
  }
}

// Eight symbols of each chunk; a state that becomes too small takes the next word.
GRADWIRE_INLINE void rans_step(RansPair& pair, const std::uint32_t* slots) {
  const U32 low = set_u32(kRansTotal - 1), slot = lookup_words(slots, pair.x & low), share = shr(pair.x, kRansBits);
  std::uint64_t symbols[2];
  store_u8(symbols, slot);
  for (int i = 0; i < 2; ++i) {
    std::memcpy(pair.symbols[i], symbols + i, sizeof symbols[i]);
    pair.symbols[i] += kRansStates;
  }
  const U32 x = shr(slot, 20) * share + share + (shr(slot, 8) & low);
  const Mask hungry = gt(set_u32(kRansLow), x);
  pair.x = select(hungry, shl(x, 16) | take_words(pair.at, hungry), x);
}

// How many steps two chunks can go, however many words they take.
GRADWIRE_INLINE std::int64_t rans_steps(const RansPair& pair, const RansChunk* chunks) {
  std::int64_t steps = chunks[0].count;
  for (int i = 0; i < 2; ++i) {
    const std::int64_t fed = (chunks[i].end - pair.at[i]) / (2 * kRansStates);
    const std::int64_t left = (chunks[i].symbols + chunks[i].count - pair.symbols[i]) / kRansStates;
    steps = fed < steps ? fed : steps, steps = left < steps ? left : steps;
  }
  return steps;
}

template <int kPairs>
static void rans_decode_together(const std::uint32_t* slots, RansChunk* chunks) {
  RansPair pairs[kPairs];
  for (int p = 0; p < kPairs; ++p) pairs[p] = rans_pair(chunks + 2 * p);
  for (;;) {
    std::int64_t steps = rans_steps(pairs[0], chunks);
    for (int p = 1; p < kPairs; ++p) {
      const std::int64_t others = rans_steps(pairs[p], chunks + 2 * p);
      steps = others < steps ? others : steps;
    }
    if (steps == 0) break;
    for (; steps > 0; --steps)
      for (int p = 0; p < kPairs; ++p) rans_step(pairs[p], slots);
  }
  for (int p = 0; p < kPairs; ++p) leave_rans(pairs[p], chunks + 2 * p);
}

void rans_decode(const RansDecode& args, std::int64_t begin, std::int64_t end) {
  std::int64_t i = begin;
  for (; end - i >= 4; i += 4) rans_decode_together<2>(args.slots, args.chunks + i);
  for (; end - i >= 2; i += 2) rans_decode_together<1>(args.slots, args.chunks + i);
}

#else

void rans_decode(const RansDecode&, std::int64_t, std::int64_t) {}

#endif

}  // namespace gradwire::GRADWIRE_TARGET
