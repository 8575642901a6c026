// Canonical prefix codes: of the codes of one length the lower symbol has the lower one, and shorter codes come first.
#include "chunks.h"

namespace gradwire {

namespace {

constexpr int kLongest = 17;
constexpr int kLooked = 11;  // bits that are looked up at once; longer codes are read bit by bit
constexpr std::int64_t kMost = (kChunk * kLongest + 7) / 8;

struct Codes {
  std::uint32_t code[kSymbols];
  int length[kSymbols];
  std::uint32_t first[kLongest + 2];  // code of each length
  int count[kLongest + 2], place[kLongest + 2];
  std::uint8_t order[kSymbols];         // symbols by code
  std::uint16_t looked[1 << kLooked];   // length and symbol, or 0
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

void fill_lookup(Codes& c) {
  std::fill(c.looked, c.looked + (1 << kLooked), std::uint16_t{0});
  for (int i = 0; i < kSymbols; ++i) {
    const int length = c.length[i], spare = kLooked - length;
    if (length == 0 || spare < 0) continue;
    std::uint16_t* const first = c.looked + (c.code[i] << spare);
    std::fill(first, first + (1 << spare), std::uint16_t(length << 8 | i));
  }
}

// The next symbol, or -1 where the bits end too early or are no code.
int read(const Codes& c, const std::uint8_t* bytes, std::int64_t end, std::int64_t& bit) {
  std::uint32_t code = 0;
  for (int length = 1; length <= kLongest && bit < end; ++length, ++bit) {
    code = code << 1 | (bytes[bit >> 3] >> (7 - (bit & 7)) & 1);
    const std::uint32_t from_first = code - c.first[length];
    if (from_first < std::uint32_t(c.count[length])) return ++bit, c.order[c.place[length] + int(from_first)];
  }
  return -1;
}

bool decode(const Codes& c, const std::uint8_t* bytes, std::int64_t size, std::uint8_t* symbols, std::int64_t n) {
  std::int64_t bit = 0;
  const std::int64_t end = 8 * size;
  for (std::int64_t i = 0; i < n; ++i) {
    if (end - bit >= 24) {
      const std::uint8_t* const at = bytes + (bit >> 3);
      const std::uint32_t window = std::uint32_t(at[0]) << 16 | std::uint32_t(at[1]) << 8 | at[2];
      const std::uint16_t found = c.looked[window >> (24 - kLooked - (bit & 7)) & ((1 << kLooked) - 1)];
      if (found != 0) {
        symbols[i] = std::uint8_t(found);
        bit += found >> 8;
        continue;
      }
    }
    const int symbol = read(c, bytes, end, bit);
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
  if (!fill(e.table, c)) return refuse(e);
  encode_chunks(e, kMost, threads, [&](const std::uint8_t* symbols, std::int64_t n, std::uint8_t* out) {
    return encode(c, symbols, n, out);
  });
}

void prefix_decode(const EntropyDecode& d, int threads) {
  Codes c;
  if (!fill(d.table, c)) return refuse(d);
  fill_lookup(c);
  decode_chunks(d, threads, [&](const ChunkBytes* first, const ChunkBytes* last) {
    bool good = true;
    for (; first < last; ++first) good = decode(c, first->bytes, first->size, first->symbols, first->count) && good;
    return good;
  });
}

}  // namespace gradwire
