// Entropy coding of bytes on a CPU, and the operations of ops.py, which says what the bytes are.
//
// A chunk of up to kChunk symbols is coded by itself, and threads take one at a time. The sizes of the chunks travel
// with them, so a decoder may start anywhere; it reads 0 beyond the end of a chunk and tells of it in the end, so bytes
// from a peer are safe whatever they are.
//
//   rans    8 interleaved states of 32 bits, words of 16, frequencies that sum to 4096. Symbol i belongs to state
//           i % 8. The final states come first, then the words in the order in which the decoder needs them.
//   prefix  canonical codes of at most 17 bits, the first bit of a code in the highest free bit of a byte.
#include "family.h"

namespace gradwire {

constexpr int kRansStates = 8;
constexpr int kRansBits = 12;
constexpr std::uint32_t kRansTotal = 1u << kRansBits;
constexpr std::uint32_t kRansLow = 1u << 16;  // a state between two symbols is at least this

// A chunk on its way: symbol i belongs to state i % 8, and `at` is where the next word is.
struct RansChunk {
  std::uint32_t states[kRansStates];
  const std::uint8_t *at, *end;
  std::uint8_t* symbols;
  std::int64_t done, count;
};

// Symbols of the chunks [begin, end), eight of each at a time, as long as there are words for all of them: what is left
// of a chunk is for somebody who looks at each word. `slots`: what is looked up for x mod 4096, see rans_slot().
struct RansDecode {
  const std::uint32_t* slots;
  RansChunk* chunks;
};
GRADWIRE_KERNEL_SECOND(rans_decode, RansDecode)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// Decodes chunks of rANS: the states of two chunks in the lanes of a vector, and two such vectors in turns, since one
// alone would wait for what it looks up. On targets that look up lanes one by one, nothing is done here.

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
#endif

#include "targets/end.h"

#else

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

constexpr Size kChunk = 32768;
constexpr Size kTogether = 4;  // chunks that a kernel decodes at once
constexpr int kSymbols = 256;

struct Encoding {
  const std::uint8_t* symbols;
  const std::int32_t* table;  // a frequency, or the length of a code, for each symbol
  std::int32_t* sizes;        // of each chunk; the first is -1 where `room` is too small
  std::uint8_t* out;
  Size room, n;
};

struct Decoding {
  const std::uint8_t* stream;
  Size length;
  const std::int32_t* sizes;
  const std::int32_t* table;
  std::uint8_t* symbols;
  std::int32_t* status;  // set to 1 where the bytes are not what an encoder writes
  Size n;
};

Size coded_chunks(Size n) { return chunk_count(n, kChunk); }

// For a table that codes nothing.
void refuse(const Encoding& e) { std::fill(e.sizes, e.sizes + coded_chunks(e.n), -1); }

void refuse(const Decoding& d) {
  *d.status = 1;
  std::fill(d.symbols, d.symbols + d.n, std::uint8_t{0});
}

// Memory that a thread keeps: fetching fresh pages takes longer than filling them.
std::uint8_t* scratch(Size size) {
  thread_local std::vector<std::uint8_t> bytes;
  if (Size(bytes.size()) < size) bytes.resize(std::size_t(size));
  return bytes.data();
}

// `code(symbols, count, buffer)` returns how many bytes it wrote; a buffer of `most` bytes is always enough.
template <class Code>
void encode_chunks(const Encoding& e, Size most, int threads, const Code& code) {
  const auto make = [&](Size begin, Size end) {
    const Size size = code(e.symbols + begin, end - begin, scratch(most));
    e.sizes[begin / kChunk] = std::int32_t(size);
    return size;
  };
  const auto write = [&](Size, Size, Size first, Size size) {
    if (first + size <= e.room) std::memcpy(e.out + first, scratch(most), std::size_t(size));
  };
  if (parallel_append(e.n, kChunk, threads, make, write) > e.room) refuse(e);
}

// The bytes of a chunk, and the symbols that they stand for.
struct ChunkBytes {
  const std::uint8_t* bytes;
  Size size;
  std::uint8_t* symbols;
  Size count;
};

// `decode(first, last)` returns whether the bytes of these chunks are what an encoder writes.
template <class Decode>
void decode_chunks(const Decoding& d, int threads, const Decode& decode) {
  std::vector<ChunkBytes> chunks;
  std::atomic<bool> good{true};
  Size end = 0;
  for (Size i = 0; i < coded_chunks(d.n); ++i) {
    const Size size = std::clamp<Size>(d.sizes[i], 0, d.length - end), begin = i * kChunk;
    if (size != d.sizes[i]) good = false;
    chunks.push_back({d.stream + end, size, d.symbols + begin, std::min(kChunk, d.n - begin)});
    end += size;
  }
  if (end != d.length) good = false;
  const Size count = Size(chunks.size()), share = is_shared(d.n, threads) ? kTogether : std::max<Size>(count, 1);
  parallel_chunks(chunk_count(count, share), threads, [&](Size i) {
    if (!decode(chunks.data() + i * share, chunks.data() + std::min((i + 1) * share, count))) good = false;
  });
  if (!good) *d.status = 1;
}

// rANS, after J. Duda, "Asymmetric numeral systems", arXiv:1311.2540, 2013.

constexpr Size kRansHead = 4 * kRansStates;
constexpr Size kRansMost = kRansHead + 2 * kChunk;

// What the encoder needs of a symbol: x div f is x * inverse >> 44, exactly, for every x below 2^20 f.
struct RansStep {
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

void put(const RansStep& s, std::uint32_t& x, std::uint16_t*& first) {
  const bool full = x > s.last;
  first[-1] = std::uint16_t(x);
  first -= full;
  x = full ? x >> 16 : x;
  x += std::uint32_t(x * s.inverse >> 44) * s.gap + s.start;
}

Size write_rans(const RansStep* steps, const std::uint8_t* symbols, Size n, std::uint8_t* out) {
  std::array<std::uint32_t, kRansStates> states;
  states.fill(kRansLow);
  std::array<std::uint16_t, kChunk + 1> words;
  std::uint16_t* const end = words.data() + words.size();
  std::uint16_t* first = end;
  Size i = n;
  for (; i % kRansStates != 0; --i) put(steps[symbols[i - 1]], states[std::size_t((i - 1) % kRansStates)], first);
  for (; i > 0; i -= kRansStates)
    for (int j = kRansStates - 1; j >= 0; --j) put(steps[symbols[i - kRansStates + j]], states[std::size_t(j)], first);
  std::memcpy(out, states.data(), kRansHead);
  std::memcpy(out + kRansHead, first, std::size_t(2 * (end - first)));
  return kRansHead + 2 * (end - first);
}

// A symbol of frequency f and the distance from its start: f - 1, which has 12 bits, the distance, and the symbol.
constexpr std::uint32_t rans_slot(std::uint32_t frequency, std::uint32_t distance, std::uint32_t symbol) {
  return (frequency - 1) << 20 | distance << 8 | symbol;
}

// What is looked up for x mod 4096. One word of all is best where many are looked up at once; one by one it takes
// longer to come apart than f and the distance from the symbol's start, 16 bits each, and the symbol.
struct RansSlots {
  std::array<std::uint32_t, kRansTotal> words, steps;
  std::array<std::uint8_t, kRansTotal> symbols;
};

std::uint8_t take(const RansSlots& slots, std::uint32_t& x) {
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
void take_many(const RansSlots& slots, RansChunk& c) {
  std::array<std::uint32_t, kRansStates> states;
  std::memcpy(states.data(), c.states, sizeof c.states);
  const std::uint8_t* at = c.at;
  Size i = c.done;
  for (; c.count - i >= kRansStates && c.end - at >= 2 * kRansStates; i += kRansStates)
    for (int j = 0; j < kRansStates; ++j) {
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
bool take_last(const RansSlots& slots, RansChunk& c) {
  bool good = true;
  for (; c.done < c.count; ++c.done) {
    std::uint32_t& x = c.states[c.done % kRansStates];
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
  const Size head = std::min(from.size, kRansHead);
  RansChunk c = {{}, from.bytes + head, from.bytes + from.size, from.symbols, 0, from.count};
  std::memcpy(c.states, from.bytes, std::size_t(head));
  return c;
}

void rans_encode(const std::uint8_t* symbols, const std::int32_t* table, std::int32_t* sizes, Maybe<std::uint8_t> out,
                 Size room, Size n, int threads) {
  const Encoding e = {symbols, table, sizes, out.data, room, n};
  if (!sums_up(table)) return refuse(e);
  std::array<RansStep, kSymbols> steps{};
  std::uint32_t start = 0;
  for (std::size_t i = 0; i < kSymbols; ++i) {
    const auto f = std::uint32_t(table[i]);
    if (f == 0) continue;
    const auto last = std::uint32_t((std::uint64_t{f} << (32 - kRansBits)) - 1);
    steps[i] = {(std::uint64_t{1} << 44) / f + 1, last, kRansTotal - f, start};
    start += f;
  }
  encode_chunks(e, kRansMost, threads, [&](const std::uint8_t* from, Size count, std::uint8_t* to) {
    return write_rans(steps.data(), from, count, to);
  });
}
GRADWIRE_OPERATION(rans_encode)

void rans_decode(Maybe<const std::uint8_t> stream, const std::int32_t* sizes, const std::int32_t* table,
                 std::uint8_t* symbols, std::int32_t* status, Size length, Size n, int threads) {
  const Decoding d = {stream.data, length, sizes, table, symbols, status, n};
  count_call();
  if (!sums_up(table)) return refuse(d);
  RansSlots slots;
  std::size_t at = 0;
  for (std::uint32_t i = 0; i < kSymbols; ++i)
    for (std::uint32_t j = 0, f = std::uint32_t(table[i]); j < f; ++j, ++at)
      slots.words[at] = rans_slot(f, j, i), slots.steps[at] = f << 16 | j, slots.symbols[at] = std::uint8_t(i);
  const auto take_together = kernels::rans_decode.of[active_place()];
  decode_chunks(d, threads, [&](const ChunkBytes* first, const ChunkBytes* last) {
    bool good = true;
    std::vector<RansChunk> chunks;
    for (; first < last; ++first) {
      chunks.push_back(open(*first));
      good = good && first->size >= kRansHead;
    }
    take_together({slots.words.data(), chunks.data()}, 0, Size(chunks.size()));
    for (RansChunk& chunk : chunks) {
      take_many(slots, chunk);
      good = take_last(slots, chunk) && good;
    }
    return good;
  });
}
GRADWIRE_OPERATION(rans_decode)

// Canonical prefix codes: of the codes of one length the lower symbol has the lower one, and shorter codes come first.

constexpr int kLongest = 17;
constexpr int kLooked = 11;  // bits that are looked up at once; longer codes are read bit by bit
constexpr Size kPrefixMost = (kChunk * kLongest + 7) / 8;

struct PrefixCodes {
  std::uint32_t code[kSymbols];
  int length[kSymbols];
  std::uint32_t first[kLongest + 2];  // code of each length
  int count[kLongest + 2], place[kLongest + 2];
  std::uint8_t order[kSymbols];         // symbols by code
  std::uint16_t looked[1 << kLooked];   // length and symbol, or 0
};

// False where there are more codes than their lengths allow.
bool fill(const std::int32_t* table, PrefixCodes& c) {
  std::fill(c.count, c.count + kLongest + 2, 0);
  for (int i = 0; i < kSymbols; ++i) {
    c.length[i] = table[i] >= 1 && table[i] <= kLongest ? table[i] : 0;
    c.count[c.length[i]] += 1;
  }
  c.count[0] = 0;
  std::uint32_t code = 0;
  int place = 0, next[kLongest + 1];
  bool good = true;
  for (int length = 1; length <= kLongest; ++length) {
    code = code << 1;
    c.first[length] = code;
    c.place[length] = next[length] = place;
    code += std::uint32_t(c.count[length]), place += c.count[length];
    good = good && code <= 1u << length;
  }
  for (int i = 0; i < kSymbols; ++i) {
    const int length = c.length[i];
    if (length == 0) continue;
    const int at = next[length]++;
    c.code[i] = c.first[length] + std::uint32_t(at - c.place[length]);
    c.order[at] = std::uint8_t(i);
  }
  return good;
}

Size write_prefix(const PrefixCodes& c, const std::uint8_t* symbols, Size n, std::uint8_t* out) {
  std::uint64_t bits = 0;
  int held = 0;
  std::uint8_t* at = out;
  for (Size i = 0; i < n; ++i) {
    const int length = c.length[symbols[i]];
    if (length == 0) continue;
    bits = bits << length | c.code[symbols[i]];
    for (held += length; held >= 8; held -= 8) *at++ = std::uint8_t(bits >> (held - 8));
  }
  if (held > 0) *at++ = std::uint8_t(bits << (8 - held));
  return at - out;
}

void fill_lookup(PrefixCodes& c) {
  std::fill(c.looked, c.looked + (1 << kLooked), std::uint16_t{0});
  for (int i = 0; i < kSymbols; ++i) {
    const int length = c.length[i], spare = kLooked - length;
    if (length == 0 || spare < 0) continue;
    std::uint16_t* const first = c.looked + (c.code[i] << spare);
    std::fill(first, first + (1 << spare), std::uint16_t(length << 8 | i));
  }
}

// The next symbol, or -1 where the bits end too early or are no code.
int read_code(const PrefixCodes& c, const std::uint8_t* bytes, Size end, Size& bit) {
  std::uint32_t code = 0;
  for (int length = 1; length <= kLongest && bit < end; ++length, ++bit) {
    code = code << 1 | (bytes[bit >> 3] >> (7 - (bit & 7)) & 1);
    const std::uint32_t from_first = code - c.first[length];
    if (from_first < std::uint32_t(c.count[length])) return ++bit, c.order[c.place[length] + int(from_first)];
  }
  return -1;
}

bool read_prefix(const PrefixCodes& c, const ChunkBytes& chunk) {
  Size bit = 0;
  const Size end = 8 * chunk.size;
  for (Size i = 0; i < chunk.count; ++i) {
    if (end - bit >= 24) {
      const std::uint8_t* const at = chunk.bytes + (bit >> 3);
      const std::uint32_t window = std::uint32_t(at[0]) << 16 | std::uint32_t(at[1]) << 8 | at[2];
      const std::uint16_t found = c.looked[window >> (24 - kLooked - (bit & 7)) & ((1 << kLooked) - 1)];
      if (found != 0) {
        chunk.symbols[i] = std::uint8_t(found);
        bit += found >> 8;
        continue;
      }
    }
    const int symbol = read_code(c, chunk.bytes, end, bit);
    if (symbol < 0) {
      std::fill(chunk.symbols + i, chunk.symbols + chunk.count, std::uint8_t(0));
      return false;
    }
    chunk.symbols[i] = std::uint8_t(symbol);
  }
  return (bit + 7) / 8 == chunk.size;
}

void prefix_encode(const std::uint8_t* symbols, const std::int32_t* table, std::int32_t* sizes,
                   Maybe<std::uint8_t> out, Size room, Size n, int threads) {
  const Encoding e = {symbols, table, sizes, out.data, room, n};
  PrefixCodes c;
  if (!fill(table, c)) return refuse(e);
  encode_chunks(e, kPrefixMost, threads, [&](const std::uint8_t* from, Size count, std::uint8_t* to) {
    return write_prefix(c, from, count, to);
  });
}
GRADWIRE_OPERATION(prefix_encode)

void prefix_decode(Maybe<const std::uint8_t> stream, const std::int32_t* sizes, const std::int32_t* table,
                   std::uint8_t* symbols, std::int32_t* status, Size length, Size n, int threads) {
  const Decoding d = {stream.data, length, sizes, table, symbols, status, n};
  PrefixCodes c;
  if (!fill(table, c)) return refuse(d);
  fill_lookup(c);
  decode_chunks(d, threads, [&](const ChunkBytes* first, const ChunkBytes* last) {
    bool good = true;
    for (; first < last; ++first) good = read_prefix(c, *first) && good;
    return good;
  });
}
GRADWIRE_OPERATION(prefix_decode)

// Neighbours count in tables of their own: where they are equal one would wait for the other.
constexpr Size kTables = 4;

using Counts = std::array<std::int64_t, std::size_t(kTables * kSymbols)>;

void count(const std::uint8_t* symbols, Size begin, Size end, Counts& counts) {
  Size i = begin;
  for (; end - i >= kTables; i += kTables)
    for (Size j = 0; j < kTables; ++j) ++counts[std::size_t(j * kSymbols + symbols[i + j])];
  for (; i < end; ++i) ++counts[symbols[i]];
}

void byte_counts(const std::uint8_t* symbols, std::int64_t* counts, Size n, int threads) {
  count_call();
  std::vector<Counts> found(std::size_t(chunk_count(n, chunk_size(n, kChunk, threads))));
  parallel_for(n, kChunk, threads, [&](Size begin, Size end, Size chunk) {
    count(symbols, begin, end, found[std::size_t(chunk)]);
  });
  std::fill_n(counts, kSymbols, 0);
  for (const Counts& one : found)
    for (std::size_t i = 0; i < one.size(); ++i) counts[i % kSymbols] += one[i];
}
GRADWIRE_OPERATION(byte_counts)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(entropy) {
  using namespace selftest;
  // Symbols are close to random; a table of one half and equal parts of the other has them take words and leave them.
  std::vector<std::int32_t> table(kSymbols, 8);
  table[7] = kRansTotal - 8 * (kSymbols - 1);
  for (const bool damaged : {false, true})
    compare(target, "rans_decode", [&](Buffers& x, Size n) {
      for (Size i = 0; i < n; i += 2) x.bytes[std::size_t(i)] = 7;
      std::vector<std::int32_t> sizes(std::size_t(coded_chunks(n)) + 1);
      std::vector<std::uint8_t> stream(std::size_t(2 * n + 64 * (coded_chunks(n) + 1)));
      rans_encode(x.bytes.data(), table.data(), sizes.data(), {stream.data()}, Size(stream.size()), n, 1);
      Size length = 0;
      for (Size i = 0; i < coded_chunks(n); ++i) length += sizes[std::size_t(i)];
      if (damaged && n > 0) stream[std::size_t(length / 2)] ^= 1;
      std::fill_n(x.bytes.begin(), n, std::uint8_t{0});
      rans_decode({stream.data()}, sizes.data(), table.data(), x.bytes.data(), x.status.data(), length, n, 1);
    });
}
#endif

}  // namespace gradwire::operations

#endif
