// Buckets on a CPU: the kernel, and the operations of ops.py.
#include "family.h"

namespace gradwire {

constexpr std::int64_t kBuckets = 256;

// What each code adds, kBuckets for a rank, one rank after the other.
struct AddBuckets {
  Rows codes;
  const float* addends;
  float* out;
};
GRADWIRE_KERNEL_SECOND(add_buckets, AddBuckets)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// Adds what the codes of each rank stand for, a part of the sum at a time, which stays in the L1 cache meanwhile.

constexpr std::int64_t kBucketPart = 2048;
constexpr int kBucketsAhead = 512;  // bytes that are asked for early: a CPU does not foresee where many streams go on

GRADWIRE_INLINE void add_bucket_part(const float* addends, const std::uint8_t* codes, float* out, std::int64_t count) {
  const Table256 table = table256(addends);
  std::int64_t i = 0;
#pragma GCC unroll 2
  for (; count - i >= 2 * kLanes; i += 2 * kLanes) {
    F32 first, second;
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(codes + i) + kBucketsAhead));
    lookup(table, codes + i, first, second);
    store(out + i, load(out + i) + first), store(out + i + kLanes, load(out + i + kLanes) + second);
  }
  for (; i < count; ++i) out[i] = out[i] + addends[codes[i]];
}

void add_buckets(const AddBuckets& args, std::int64_t begin, std::int64_t end) {
  const AddBuckets k = args;
  for (std::int64_t i = begin; i < end; i += kBucketPart)
    for (std::int64_t rank = 0; rank < k.codes.count; ++rank)
      add_bucket_part(k.addends + kBuckets * rank, k.codes.data + rank * k.codes.stride + i, k.out + i,
                      end - i < kBucketPart ? end - i : kBucketPart);
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

// Sums are of so many elements, one after the other, and then of these sums: the same however many threads there are.
constexpr Size kPiece = 32768;

struct Piece {
  std::array<double, kBuckets> sums{};
  std::array<std::int32_t, kBuckets> counts{};
};

std::uint32_t upper_half(const float& x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits >> 16;
}

// The elements of one piece.
void encode_piece(const float* x, const std::uint8_t* bucket_of, std::uint8_t* codes, Size count, Piece& piece) {
  for (Size i = 0; i < count; ++i) {
    const std::uint8_t bucket = bucket_of[upper_half(x[i])];
    codes[i] = bucket;
    piece.sums[bucket] += double(x[i]);
    ++piece.counts[bucket];
  }
}

// `bucket_of`: of each value of the upper 16 bits of a float.
void bucket_encode(const float* x, const std::uint8_t* bucket_of, std::uint8_t* codes, double* sums,
                   std::int64_t* counts, Size n, int threads) {
  count_call();
  std::vector<Piece> pieces(std::size_t((n + kPiece - 1) / kPiece));
  parallel_for(n, kPiece, threads, [&](Size begin, Size end, Size) {
    for (Size i = begin; i < end; i += kPiece)
      encode_piece(x + i, bucket_of, codes + i, std::min(kPiece, end - i), pieces[std::size_t(i / kPiece)]);
  });
  std::fill_n(sums, kBuckets, 0.0);
  std::fill_n(counts, kBuckets, 0);
  for (const Piece& piece : pieces)
    for (std::size_t i = 0; i < kBuckets; ++i) sums[i] += piece.sums[i], counts[i] += piece.counts[i];
}
GRADWIRE_OPERATION(bucket_encode)

// What each code of a rank adds; one beyond the levels is the last of them.
void write_addends(const std::uint8_t* levels, Size buckets, float scale, float* table) {
  for (Size code = 0; code < kBuckets && buckets > 0; ++code) {
    float level;
    std::memcpy(&level, levels + sizeof level * std::size_t(std::min(code, buckets - 1)), sizeof level);
    table[code] = scale * level;
  }
}

void bucket_add_decoded(Column codes, Column levels, float* out, double scale, Size ranks, Size buckets, Size n,
                        int threads) {
  std::vector<float> addends(std::size_t(ranks * kBuckets));
  for (Size rank = 0; rank < ranks; ++rank)
    write_addends(levels.data + rank * levels.stride, buckets, float(scale), addends.data() + rank * kBuckets);
  run(kernels::add_buckets, {codes.rows(ranks), addends.data(), out}, n, 64, threads);
}
GRADWIRE_OPERATION(bucket_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(buckets) {
  using namespace selftest;
  const std::vector<float> addends = Buffers::values(kRanks * kBuckets);
  check(target, "add_buckets", kernels::add_buckets, [&](Buffers& x, Size n) {
    return AddBuckets{x.rows(n), addends.data(), x.a.data()};
  });
}
#endif

}  // namespace gradwire::operations

#endif
