// out = out * scale, and scale = max(sqrt(beta scale^2 + (1 - beta) out^2), least); a scale of 0 counts as 1.
#pragma once

#include "kernels/block_sums.h"
#include "kernels/precondition.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void precondition_update_step(const PreconditionUpdate& k, std::int64_t i, int count) {
  const F32 scale = load_ahead(k.scale + i, count);
  const F32 arrived = load_ahead(k.out + i, count) * divisor(scale);
  store(k.out + i, arrived, count);
  if (k.still) return;
  const F32 size = magnitude(arrived);
  const F32 before = scale * set(k.inverse), now = min(size * set(k.inverse), set(0x1p60f));
  const F32 moved = sqrt(before * before * set(k.beta) + now * now * set(k.rest)) * set(k.unit);
  const F32 least = set(k.least);
  // What is not finite says nothing.
  store(k.scale + i, select(lt(size, set(__builtin_inff())), select(lt(moved, least), least, moved), scale), count);
}

GRADWIRE_RANGE_KERNEL(precondition_update, PreconditionUpdate, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
