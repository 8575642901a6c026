// The floats of a cast: 16 lanes from and to memory.
#pragma once

#include "kernels/bfloat16.h"

namespace gradwire::GRADWIRE_TARGET {

template <CastTo kTo>
constexpr int kCastBytes = kTo == CastTo::float32 ? 4 : 2;

template <CastTo kTo>
GRADWIRE_INLINE F32 load_cast(const std::uint8_t* p, int count) {
  if constexpr (kTo == CastTo::float16) return load_f16(p, count);
  if constexpr (kTo == CastTo::bfloat16) return load_bf16(p, count);
  return load(reinterpret_cast<const float*>(p), count);
}

template <CastTo kTo>
GRADWIRE_INLINE void store_cast(std::uint8_t* p, F32 x, int count) {
  if constexpr (kTo == CastTo::float16)
    store_f16(p, x, count);
  else if constexpr (kTo == CastTo::bfloat16)
    store_bf16(p, x, count);
  else
    store(reinterpret_cast<float*>(p), x, count);
}

// Defines the kernel `name` as name##_to<kTo>() for the format that its arguments ask for.
#define GRADWIRE_CAST_KERNEL(name, Args)                                                            \
  void name(const Args& args, std::int64_t begin, std::int64_t end) {                               \
    constexpr decltype(&name##_to<CastTo::float16>) to[] = {                                        \
        name##_to<CastTo::float16>, name##_to<CastTo::bfloat16>, name##_to<CastTo::float32>};       \
    to[int(args.to)](args, begin, end);                                                             \
  }

}  // namespace gradwire::GRADWIRE_TARGET
