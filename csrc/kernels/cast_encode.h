// A scaled copy, in 16 bits as a rule.
#pragma once

#include "kernels/cast.h"

namespace gradwire::GRADWIRE_TARGET {

template <CastTo kTo>
static void cast_encode_to(const CastEncode& args, std::int64_t begin, std::int64_t end) {
  const CastEncode k = args;
  const F32 scale = set(k.scale);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes)
    store_cast<kTo>(k.out + kCastBytes<kTo> * i, load_ahead(k.x + i, kLanes) * scale, kLanes);
  if (i < end) store_cast<kTo>(k.out + kCastBytes<kTo> * i, load(k.x + i, int(end - i)) * scale, int(end - i));
}

GRADWIRE_CAST_KERNEL(cast_encode, CastEncode)

}  // namespace gradwire::GRADWIRE_TARGET
