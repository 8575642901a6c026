#include "buckets.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "dispatch.h"

namespace gradwire {

namespace {

// Sums are of so many elements, one after the other, and then of these sums: the same however many threads there are.
constexpr std::int64_t kPiece = 32768;

struct Piece {
  std::array<double, kBuckets> sums{};
  std::array<std::int32_t, kBuckets> counts{};
};

std::uint32_t upper_half(const float& x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits >> 16;
}

void encode(const BucketEncode& b, std::int64_t begin, std::int64_t end, Piece& piece) {
  for (std::int64_t i = begin; i < end; ++i) {
    const std::uint8_t bucket = b.bucket_of[upper_half(b.x[i])];
    b.codes[i] = bucket;
    piece.sums[bucket] += double(b.x[i]);
    ++piece.counts[bucket];
  }
}

// What each code of a rank adds.
void write_addends(const BucketAddDecoded& b, std::int64_t rank, float* table) {
  const std::uint8_t* const levels = b.levels.data + rank * b.levels.stride;
  for (std::int64_t code = 0; code < kBuckets && b.levels_count > 0; ++code) {
    float level;
    std::memcpy(&level, levels + sizeof level * std::size_t(std::min(code, b.levels_count - 1)), sizeof level);
    table[code] = b.scale * level;
  }
}

}  // namespace

void bucket_encode(const BucketEncode& b, std::int64_t n, int threads) {
  count_call();
  std::vector<Piece> pieces(std::size_t((n + kPiece - 1) / kPiece));
  parallel_for(n, kPiece, threads, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; i += kPiece)
      encode(b, i, std::min(i + kPiece, end), pieces[std::size_t(i / kPiece)]);
  });
  std::fill_n(b.sums, kBuckets, 0.0);
  std::fill_n(b.counts, kBuckets, 0);
  for (const Piece& piece : pieces)
    for (std::size_t i = 0; i < kBuckets; ++i) b.sums[i] += piece.sums[i], b.counts[i] += piece.counts[i];
}

void bucket_add_decoded(const BucketAddDecoded& b, std::int64_t n, int threads) {
  std::vector<float> addends(std::size_t(b.codes.count * kBuckets));
  for (std::int64_t rank = 0; rank < b.codes.count; ++rank) write_addends(b, rank, addends.data() + rank * kBuckets);
  run(&KernelTable::add_buckets, {b.codes, addends.data(), b.out}, n, 64, threads);
}

}  // namespace gradwire
