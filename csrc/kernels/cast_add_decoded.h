// Adds the scaled payloads of all ranks, one after the other, with the sums in registers.
#pragma once

#include "kernels/cast.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr int kCastSums = 4;

template <CastTo kTo, int kSums>
GRADWIRE_INLINE void cast_add_decoded_step(const CastAddDecoded& k, std::int64_t i, int count) {
  const F32 scale = set(k.scale);
  const std::uint8_t* p = k.payloads.data + kCastBytes<kTo> * i;
  F32 sums[kSums];
  for (int j = 0; j < kSums; ++j) sums[j] = load_ahead(k.out + i + j * kLanes, count);
  for (std::int64_t w = 0; w < k.payloads.count; ++w, p += k.payloads.stride)
    for (int j = 0; j < kSums; ++j)
      sums[j] = sums[j] + scale * load_cast<kTo>(p + kCastBytes<kTo> * kLanes * j, count);
  for (int j = 0; j < kSums; ++j) store(k.out + i + j * kLanes, sums[j], count);
}

template <CastTo kTo>
static void cast_add_decoded_to(const CastAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const CastAddDecoded k = args;
  std::int64_t i = begin;
  for (; end - i >= kCastSums * kLanes; i += kCastSums * kLanes) cast_add_decoded_step<kTo, kCastSums>(k, i, kLanes);
  for (; end - i >= kLanes; i += kLanes) cast_add_decoded_step<kTo, 1>(k, i, kLanes);
  if (i < end) cast_add_decoded_step<kTo, 1>(k, i, int(end - i));
}

GRADWIRE_CAST_KERNEL(cast_add_decoded, CastAddDecoded)

}  // namespace gradwire::GRADWIRE_TARGET
