// After J. Duda, "Asymmetric numeral systems", arXiv:1311.2540, 2013.
#include <array>

#include "chunks.h"
#include "dispatch.h"
#include "rans.h"

namespace gradwire {

namespace {

constexpr int kStates = kRansStates;
constexpr std::int64_t kHead = 4 * kStates;
constexpr std::int64_t kMost = kHead + 2 * kChunk;

// What the encoder needs of a symbol: x div f is x * inverse >> 44, exactly, for every x below 2^20 f.
struct Step {
  std::uint64_t inverse;
  std::uint32_t last, gap, start;  // the largest x that gives up no word; 4096 - f
};

bool sums_up(const std::int32_t* table) {
  std::uint32_t sum = 0;
  for (int i = 0; i < kSymbols; ++i) {
    if (table[i] < 0 || std::uint32_t(table[i]) > kRansTotal - sum) return false;
    sum += std::uint32_t(table[i]);
  }
  return sum == kRansTotal;
}

void put(const Step& s, std::uint32_t& x, std::uint16_t*& first) {
  const bool full = x > s.last;
  first[-1] = std::uint16_t(x);
  first -= full;
  x = full ? x >> 16 : x;
  x += std::uint32_t(x * s.inverse >> 44) * s.gap + s.start;
}

std::int64_t encode(const Step* steps, const std::uint8_t* symbols, std::int64_t n, std::uint8_t* out) {
  std::array<std::uint32_t, kStates> states;
  states.fill(kRansLow);
  std::array<std::uint16_t, kChunk + 1> words;
  std::uint16_t* const end = words.data() + words.size();
  std::uint16_t* first = end;
  std::int64_t i = n;
  for (; i % kStates != 0; --i) put(steps[symbols[i - 1]], states[std::size_t((i - 1) % kStates)], first);
  for (; i > 0; i -= kStates)
    for (int j = kStates - 1; j >= 0; --j) put(steps[symbols[i - kStates + j]], states[std::size_t(j)], first);
  std::memcpy(out, states.data(), kHead);
  std::memcpy(out + kHead, first, std::size_t(2 * (end - first)));
  return kHead + 2 * (end - first);
}

// What is looked up for x mod 4096. One word of all is best where many are looked up at once; one by one it takes
// longer to come apart than f and the distance from the symbol's start, 16 bits each, and the symbol.
struct Slots {
  std::array<std::uint32_t, kRansTotal> words, steps;
  std::array<std::uint8_t, kRansTotal> symbols;
};

std::uint8_t take(const Slots& slots, std::uint32_t& x) {
  const std::uint32_t i = x & (kRansTotal - 1), step = slots.steps[i];
  x = (step >> 16) * (x >> kRansBits) + (step & 0xffff);
  return slots.symbols[i];
}

std::uint32_t word_at(const std::uint8_t* at) {
  std::uint16_t word;
  std::memcpy(&word, at, 2);
  return word;
}

// Eight symbols at a time, as long as there are words for all of them.
void take_many(const Slots& slots, RansChunk& c) {
  std::array<std::uint32_t, kStates> states;
  std::memcpy(states.data(), c.states, sizeof c.states);
  const std::uint8_t* at = c.at;
  std::int64_t i = c.done;
  for (; c.count - i >= kStates && c.end - at >= 2 * kStates; i += kStates)
    for (int j = 0; j < kStates; ++j) {
      std::uint32_t& x = states[std::size_t(j)];
      c.symbols[i + j] = take(slots, x);
      // Not a branch: whether a state takes a word is close to random.
      const std::uint32_t hungry = x < kRansLow;
      x = x << 16 * hungry | (word_at(at) & (0 - hungry));
      at += 2 * hungry;
    }
  std::memcpy(c.states, states.data(), sizeof c.states);
  c.at = at, c.done = i;
}

// What is left. Returns whether the bytes were what an encoder writes.
bool take_last(const Slots& slots, RansChunk& c) {
  bool good = true;
  for (; c.done < c.count; ++c.done) {
    std::uint32_t& x = c.states[c.done % kStates];
    c.symbols[c.done] = take(slots, x);
    if (x >= kRansLow) continue;
    const bool there = c.end - c.at >= 2;
    x = x << 16 | (there ? word_at(c.at) : 0);
    c.at += 2 * there;
    good = good && there;
  }
  for (const std::uint32_t x : c.states) good = good && x == kRansLow;
  return good && c.at == c.end;
}

RansChunk open(const ChunkBytes& from) {
  const std::int64_t head = std::min(from.size, kHead);
  RansChunk c = {{}, from.bytes + head, from.bytes + from.size, from.symbols, 0, from.count};
  std::memcpy(c.states, from.bytes, std::size_t(head));
  return c;
}

}  // namespace

void rans_encode(const EntropyEncode& e, int threads) {
  if (!sums_up(e.table)) return refuse(e);
  std::array<Step, kSymbols> steps{};
  std::uint32_t start = 0;
  for (std::size_t i = 0; i < kSymbols; ++i) {
    const auto f = std::uint32_t(e.table[i]);
    if (f == 0) continue;
    const auto last = std::uint32_t((std::uint64_t{f} << (32 - kRansBits)) - 1);
    steps[i] = {(std::uint64_t{1} << 44) / f + 1, last, kRansTotal - f, start};
    start += f;
  }
  encode_chunks(e, kMost, threads, [&](const std::uint8_t* symbols, std::int64_t n, std::uint8_t* out) {
    return encode(steps.data(), symbols, n, out);
  });
}

void rans_decode(const EntropyDecode& d, int threads) {
  count_call();
  if (!sums_up(d.table)) return refuse(d);
  Slots slots;
  std::size_t at = 0;
  for (std::uint32_t i = 0; i < kSymbols; ++i)
    for (std::uint32_t j = 0, f = std::uint32_t(d.table[i]); j < f; ++j, ++at)
      slots.words[at] = rans_slot(f, j, i), slots.steps[at] = f << 16 | j, slots.symbols[at] = std::uint8_t(i);
  const KernelTable& kernels = active();
  decode_chunks(d, threads, [&](const ChunkBytes* first, const ChunkBytes* last) {
    bool good = true;
    std::vector<RansChunk> chunks;
    for (; first < last; ++first) {
      chunks.push_back(open(*first));
      good = good && first->size >= kHead;
    }
    kernels.rans_decode({slots.words.data(), chunks.data()}, 0, std::int64_t(chunks.size()));
    for (RansChunk& chunk : chunks) {
      take_many(slots, chunk);
      good = take_last(slots, chunk) && good;
    }
    return good;
  });
}

}  // namespace gradwire
