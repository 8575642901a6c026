// Lossless coding of bytes, in chunks that threads take one at a time.
//
// A chunk of up to kChunk symbols is coded by itself. The sizes of the chunks travel with them, so a decoder may start
// anywhere; it reads 0 beyond the end of a chunk and tells of it in the end, so bytes from a peer are safe whatever
// they are.
//
//   rans    8 interleaved states of 32 bits, words of 16, frequencies that sum to 4096. Symbol i belongs to state
//           i % 8. The final states come first, then the words in the order in which the decoder needs them.
//   prefix  canonical codes of at most 17 bits, the first bit of a code in the highest free bit of a byte.
#pragma once

#include <cstdint>

namespace gradwire {

constexpr std::int64_t kChunk = 32768;
constexpr int kSymbols = 256;

struct EntropyEncode {
  const std::uint8_t* symbols;
  const std::int32_t* table;  // a frequency, or the length of a code, for each symbol
  std::int32_t* sizes;        // of each chunk; the first is -1 where `room` is too small
  std::uint8_t* out;
  std::int64_t room, n;
};

struct EntropyDecode {
  const std::uint8_t* stream;
  std::int64_t nbytes;
  const std::int32_t* sizes;
  const std::int32_t* table;
  std::uint8_t* symbols;
  std::int32_t* status;  // set to 1 where the bytes are not what an encoder writes
  std::int64_t n;
};

// How often each byte occurs.
void byte_counts(const std::uint8_t* symbols, std::int64_t* counts, std::int64_t n, int threads);

void rans_encode(const EntropyEncode& e, int threads);
void rans_decode(const EntropyDecode& d, int threads);
void prefix_encode(const EntropyEncode& e, int threads);
void prefix_decode(const EntropyDecode& d, int threads);

}  // namespace gradwire
