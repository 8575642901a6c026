// residual = residual + grad: the first step of error feedback alone.
#pragma once

#include "kernels/compensate.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void accumulate_step(const Feedback& k, std::int64_t i, int count, U32& worst) {
  store(k.residual + i, compensate(k, i, count, worst), count);
}

GRADWIRE_WATCHING_KERNEL(accumulate, Feedback, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
