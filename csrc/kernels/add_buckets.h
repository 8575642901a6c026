// Adds what the codes of each rank stand for, a part of the sum at a time, which stays in the L1 cache meanwhile.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

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
