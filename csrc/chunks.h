// How the chunks of an entropy coder are handed to threads and laid end to end.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "entropy.h"
#include "parallel.h"

namespace gradwire {

inline std::int64_t chunk_count(std::int64_t n) { return (n + kChunk - 1) / kChunk; }

inline int team(std::int64_t n, int threads) {
  return n < kSerialBelow || in_forked_child() ? 1 : std::max(1, int(std::min<std::int64_t>(threads, chunk_count(n))));
}

// For a table that codes nothing.
inline void refuse(const EntropyEncode& e) { std::fill(e.sizes, e.sizes + chunk_count(e.n), -1); }

inline void refuse(const EntropyDecode& d) {
  *d.status = 1;
  std::fill(d.symbols, d.symbols + d.n, std::uint8_t{0});
}

// `code(symbols, count, buffer)` returns how many bytes it wrote; a buffer of `most` bytes is always enough.
template <class Code>
void encode_chunks(const EntropyEncode& e, std::int64_t most, int threads, const Code& code) {
  const std::int64_t chunks = chunk_count(e.n);
  const int count = team(e.n, threads);
  std::vector<std::uint8_t> buffers(std::size_t(count * most));
  std::int64_t end = 0;
  for (std::int64_t first = 0; first < chunks; first += count) {
    const int now = int(std::min<std::int64_t>(count, chunks - first));
    parallel_tasks(now, [&](int i) {
      const std::int64_t begin = (first + i) * kChunk;
      e.sizes[first + i] =
          std::int32_t(code(e.symbols + begin, std::min(kChunk, e.n - begin), buffers.data() + i * most));
    });
    for (int i = 0; i < now; ++i) {
      const std::int64_t size = e.sizes[first + i];
      if (end + size > e.room) return refuse(e);
      std::memcpy(e.out + end, buffers.data() + i * most, std::size_t(size));
      end += size;
    }
  }
}

// The bytes of a chunk, and the symbols that they stand for.
struct ChunkBytes {
  const std::uint8_t* bytes;
  std::int64_t size;
  std::uint8_t* symbols;
  std::int64_t count;
};

// `decode(first, last)` returns whether the bytes of these chunks are what an encoder writes.
template <class Decode>
void decode_chunks(const EntropyDecode& d, int threads, const Decode& decode) {
  std::vector<ChunkBytes> chunks;
  std::atomic<bool> good{true};
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < chunk_count(d.n); ++i) {
    const std::int64_t size = std::clamp<std::int64_t>(d.sizes[i], 0, d.nbytes - end), begin = i * kChunk;
    if (size != d.sizes[i]) good = false;
    chunks.push_back({d.stream + end, size, d.symbols + begin, std::min(kChunk, d.n - begin)});
    end += size;
  }
  if (end != d.nbytes) good = false;
  const int tasks = team(d.n, threads);
  const std::size_t share = (chunks.size() + std::size_t(tasks) - 1) / std::size_t(tasks);
  parallel_tasks(tasks, [&](int task) {
    const std::size_t first = std::min(std::size_t(task) * share, chunks.size());
    const std::size_t last = std::min(first + share, chunks.size());
    if (!decode(chunks.data() + first, chunks.data() + last)) good = false;
  });
  if (!good) *d.status = 1;
}

}  // namespace gradwire

