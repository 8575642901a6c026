// After J. Duda, "Asymmetric numeral systems", arXiv:1311.2540, 2013.
#include <vector>

#include "chunks.h"

namespace gradwire {

namespace {

constexpr int kStates = 8;
constexpr int kBits = 12;
constexpr std::uint32_t kTotal = 1u << kBits;
constexpr std::uint32_t kLow = 1u << 16;  // a state between two symbols is at least this
constexpr std::int64_t kHead = 4 * kStates;
constexpr std::int64_t kMost = kHead + 2 * kChunk;

struct Slot {
  std::uint16_t frequency, offset;
  std::uint8_t symbol;
};

struct Starts {
  std::uint32_t frequency[kSymbols], start[kSymbols];
};

// False where the frequencies do not sum to 4096; what they claim beyond that does not exist.
bool fill(const std::int32_t* table, Starts& s) {
  std::int64_t sum = 0;
  for (int i = 0; i < kSymbols; ++i) {
    s.start[i] = std::uint32_t(sum);
    const std::int64_t frequency = std::clamp<std::int64_t>(table[i], 0, kTotal - sum);
    s.frequency[i] = std::uint32_t(frequency);
    sum += frequency;
  }
  return sum == kTotal;
}

std::int64_t encode(const Starts& s, const std::uint8_t* symbols, std::int64_t n, std::uint8_t* out) {
  std::uint32_t states[kStates];
  std::fill(states, states + kStates, kLow);
  std::vector<std::uint16_t> words(static_cast<std::size_t>(n));
  std::int64_t first = n;
  for (std::int64_t i = n - 1; i >= 0; --i) {
    std::uint32_t& x = states[i % kStates];
    const std::uint32_t frequency = s.frequency[symbols[i]];
    if (frequency == 0) continue;
    if (std::uint64_t(x) >= std::uint64_t(frequency) << (32 - kBits)) {
      words[std::size_t(--first)] = std::uint16_t(x);
      x >>= 16;
    }
    x = (x / frequency << kBits) + x % frequency + s.start[symbols[i]];
  }
  std::memcpy(out, states, kHead);
  const std::int64_t count = n - first;
  if (count) std::memcpy(out + kHead, words.data() + first, std::size_t(2 * count));
  return kHead + 2 * count;
}

bool decode(const Slot* slots, const std::uint8_t* bytes, std::int64_t size, std::uint8_t* symbols, std::int64_t n) {
  std::uint32_t states[kStates] = {};
  std::memcpy(states, bytes, std::size_t(std::min(size, kHead)));
  const std::uint8_t* at = bytes + std::min(size, kHead);
  const std::uint8_t* const end = bytes + size;
  bool good = size >= kHead;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t& x = states[i % kStates];
    const Slot slot = slots[x & (kTotal - 1)];
    symbols[i] = slot.symbol;
    x = slot.frequency * (x >> kBits) + slot.offset;
    if (x < kLow) {
      std::uint16_t word = 0;
      if (end - at >= 2) {
        std::memcpy(&word, at, 2);
        at += 2;
      } else {
        good = false;
      }
      x = x << 16 | word;
    }
  }
  for (const std::uint32_t x : states) good = good && x == kLow;
  return good && at == end;
}

}  // namespace

void rans_encode(const EntropyEncode& e, int threads) {
  Starts s;
  fill(e.table, s);
  encode_chunks(e, kMost, threads, [&](const std::uint8_t* symbols, std::int64_t n, std::uint8_t* out) {
    return encode(s, symbols, n, out);
  });
}

void rans_decode(const EntropyDecode& d, int threads) {
  Starts s;
  if (!fill(d.table, s)) return refuse(d);
  Slot slots[kTotal] = {};
  for (int i = 0; i < kSymbols; ++i)
    for (std::uint32_t j = 0; j < s.frequency[i]; ++j)
      slots[s.start[i] + j] = {std::uint16_t(s.frequency[i]), std::uint16_t(j), std::uint8_t(i)};
  decode_chunks(d, threads, [&](const std::uint8_t* bytes, std::int64_t size, std::uint8_t* symbols, std::int64_t n) {
    return decode(slots, bytes, size, symbols, n);
  });
}

}  // namespace gradwire
