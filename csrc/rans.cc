// After J. Duda, "Asymmetric numeral systems", arXiv:1311.2540, 2013.
#include <array>

#include "chunks.h"

namespace gradwire {

namespace {

constexpr int kStates = 8;
constexpr int kBits = 12;
constexpr std::uint32_t kTotal = 1u << kBits;
constexpr std::uint32_t kLow = 1u << 16;  // a state between two symbols is at least this
constexpr std::int64_t kHead = 4 * kStates;
constexpr std::int64_t kMost = kHead + 2 * kChunk;

// What the encoder needs of a symbol: x div f is x * inverse >> 44, exactly, for every x below 2^20 f.
struct Step {
  std::uint64_t inverse;
  std::uint32_t last, gap, start;  // the largest x that gives up no word; 4096 - f
};

// What the decoder needs of x mod 4096: f, and the distance from the symbol's start, 16 bits each; the symbol.
struct Slots {
  std::array<std::uint32_t, kTotal> steps;
  std::array<std::uint8_t, kTotal> symbols;
};

bool sums_up(const std::int32_t* table) {
  std::uint32_t sum = 0;
  for (int i = 0; i < kSymbols; ++i) {
    if (table[i] < 0 || std::uint32_t(table[i]) > kTotal - sum) return false;
    sum += std::uint32_t(table[i]);
  }
  return sum == kTotal;
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
  states.fill(kLow);
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

std::uint8_t take(const Slots& slots, std::uint32_t& x) {
  const std::uint32_t i = x & (kTotal - 1), step = slots.steps[i];
  x = (step >> 16) * (x >> kBits) + (step & 0xffff);
  return slots.symbols[i];
}

std::uint32_t word_at(const std::uint8_t* at) {
  std::uint16_t word;
  std::memcpy(&word, at, 2);
  return word;
}

bool decode(const Slots& slots, const std::uint8_t* bytes, std::int64_t size, std::uint8_t* symbols, std::int64_t n) {
  std::array<std::uint32_t, kStates> states{};
  std::memcpy(states.data(), bytes, std::size_t(std::min(size, kHead)));
  const std::uint8_t* at = bytes + std::min(size, kHead);
  const std::uint8_t* const end = bytes + size;
  bool good = size >= kHead;
  std::int64_t i = 0;
  for (; n - i >= kStates && end - at >= 2 * kStates; i += kStates)
    for (int j = 0; j < kStates; ++j) {
      std::uint32_t& x = states[std::size_t(j)];
      symbols[i + j] = take(slots, x);
      // Not a branch: whether a state takes a word is close to random.
      const std::uint32_t hungry = x < kLow;
      x = x << 16 * hungry | (word_at(at) & (0 - hungry));
      at += 2 * hungry;
    }
  for (; i < n; ++i) {
    std::uint32_t& x = states[std::size_t(i % kStates)];
    symbols[i] = take(slots, x);
    if (x >= kLow) continue;
    const bool there = end - at >= 2;
    x = x << 16 | (there ? word_at(at) : 0);
    at += 2 * there;
    good = good && there;
  }
  for (const std::uint32_t x : states) good = good && x == kLow;
  return good && at == end;
}

}  // namespace

void rans_encode(const EntropyEncode& e, int threads) {
  if (!sums_up(e.table)) return refuse(e);
  std::array<Step, kSymbols> steps{};
  std::uint32_t start = 0;
  for (std::size_t i = 0; i < kSymbols; ++i) {
    const auto f = std::uint32_t(e.table[i]);
    if (f == 0) continue;
    steps[i] = {(std::uint64_t{1} << 44) / f + 1, std::uint32_t((std::uint64_t{f} << (32 - kBits)) - 1), kTotal - f, start};
    start += f;
  }
  encode_chunks(e, kMost, threads, [&](const std::uint8_t* symbols, std::int64_t n, std::uint8_t* out) {
    return encode(steps.data(), symbols, n, out);
  });
}

void rans_decode(const EntropyDecode& d, int threads) {
  if (!sums_up(d.table)) return refuse(d);
  Slots slots;
  std::size_t at = 0;
  for (std::uint32_t i = 0; i < kSymbols; ++i)
    for (std::uint32_t j = 0, f = std::uint32_t(d.table[i]); j < f; ++j, ++at)
      slots.steps[at] = f << 16 | j, slots.symbols[at] = std::uint8_t(i);
  decode_chunks(d, threads, [&](const std::uint8_t* bytes, std::int64_t size, std::uint8_t* symbols, std::int64_t n) {
    return decode(slots, bytes, size, symbols, n);
  });
}

}  // namespace gradwire
