// Canonical prefix codes: of the codes of one length the lower symbol has the lower one, and shorter codes come first.
#include "chunks.h"

namespace gradwire {

namespace {

constexpr int kLongest = 17;
constexpr std::int64_t kMost = (kChunk * kLongest + 7) / 8;

struct Codes {
  std::uint32_t code[kSymbols];
  int length[kSymbols];
  std::uint32_t first[kLongest + 2];  // code of each length
  int count[kLongest + 2], place[kLongest + 2];
  std::uint8_t order[kSymbols];  // symbols by code
};

// False where there are more codes than their lengths allow.
bool fill(const std::int32_t* table, Codes& c) {
  std::fill(c.count, c.count + kLongest + 2, 0);
  for (int i = 0; i < kSymbols; ++i) {
    c.length[i] = table[i] >= 1 && table[i] <= kLongest ? table[i] : 0;
    c.count[c.length[i]] += 1;
  }
  c.count[0] = 0;
  std::uint32_t code = 0;
  int place = 0;
  bool good = true;
  for (int length = 1; length <= kLongest; ++length) {
    code = code << 1;
    c.first[length] = code;
    c.place[length] = place;
    for (int i = 0; i < kSymbols; ++i)
      if (c.length[i] == length) {
        c.code[i] = code++;
        c.order[place++] = std::uint8_t(i);
      }
    good = good && code <= 1u << length;
  }
  return good;
}

std::int64_t encode(const Codes& c, const std::uint8_t* symbols, std::int64_t n, std::uint8_t* out) {
  std::uint64_t bits = 0;
  int held = 0;
  std::uint8_t* at = out;
  for (std::int64_t i = 0; i < n; ++i) {
    const int length = c.length[symbols[i]];
    if (length == 0) continue;
    bits = bits << length | c.code[symbols[i]];
    for (held += length; held >= 8; held -= 8) *at++ = std::uint8_t(bits >> (held - 8));
  }
  if (held > 0) *at++ = std::uint8_t(bits << (8 - held));
  return at - out;
}

bool decode(const Codes& c, const std::uint8_t* bytes, std::int64_t size, std::uint8_t* symbols, std::int64_t n) {
  std::int64_t bit = 0;
  const std::int64_t end = 8 * size;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t code = 0;
    int length = 0, symbol = -1;
    while (symbol < 0 && length < kLongest && bit < end) {
      code = code << 1 | (bytes[bit >> 3] >> (7 - (bit & 7)) & 1);
      ++bit, ++length;
      if (code - c.first[length] < std::uint32_t(c.count[length]))
        symbol = c.order[c.place[length] + int(code - c.first[length])];
    }
    if (symbol < 0) {
      std::fill(symbols + i, symbols + n, std::uint8_t(0));
      return false;
    }
    symbols[i] = std::uint8_t(symbol);
  }
  return (bit + 7) / 8 == size;
}

}  // namespace

void prefix_encode(const EntropyEncode& e, int threads) {
  Codes c;
  fill(e.table, c);
  encode_chunks(e, kMost, threads, [&](const std::uint8_t* symbols, std::int64_t n, std::uint8_t* out) {
    return encode(c, symbols, n, out);
  });
}

void prefix_decode(const EntropyDecode& d, int threads) {
  Codes c;
  if (!fill(d.table, c)) return refuse(d);
  decode_chunks(d, threads, [&](const std::uint8_t* bytes, std::int64_t size, std::uint8_t* symbols, std::int64_t n) {
    return decode(c, bytes, size, symbols, n);
  });
}

}  // namespace gradwire
