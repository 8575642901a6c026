// The running mean of gradients.
#pragma once

#include "kernels/momentum.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void momentum_update_step(const MomentumUpdate& k, std::int64_t i, int count, U32& worst) {
  advance(k, i, count, worst);
}

GRADWIRE_WATCHING_KERNEL(momentum_update, MomentumUpdate, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
