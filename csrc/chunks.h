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

// `decode(bytes, size, symbols, count)` returns whether the bytes are what an encoder writes.
template <class Decode>
void decode_chunks(const EntropyDecode& d, int threads, const Decode& decode) {
  const std::int64_t chunks = chunk_count(d.n);
  std::vector<std::int64_t> ends(std::size_t(chunks + 1), 0);
  std::atomic<bool> good{true};
  for (std::int64_t i = 0; i < chunks; ++i) {
    const std::int64_t size = std::clamp<std::int64_t>(d.sizes[i], 0, d.nbytes - ends[i]);
    if (size != d.sizes[i]) good = false;
    ends[i + 1] = ends[i] + size;
  }
  if (ends[chunks] != d.nbytes) good = false;
  const int count = team(d.n, threads);
  parallel_tasks(count, [&](int task) {
    for (std::int64_t i = task; i < chunks; i += count) {
      const std::int64_t begin = i * kChunk;
      if (!decode(d.stream + ends[i], ends[i + 1] - ends[i], d.symbols + begin, std::min(kChunk, d.n - begin)))
        good = false;
    }
  });
  if (!good) *d.status = 1;
}

}  // namespace gradwire
