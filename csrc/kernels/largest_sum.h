// The largest magnitude of residual + grad, which is formed again where it is needed: that moves fewer bytes than
// keeping it.
#pragma once

#include "kernels/largest.h"

namespace gradwire::GRADWIRE_TARGET {

void largest_sum(const LargestSum& args, std::int64_t begin, std::int64_t end) {
  const float *const grad = args.grad, *const residual = args.residual;
  join_largest(args.out, largest_of(begin, end, [=](std::int64_t i, int count) GRADWIRE_LAMBDA {
    return load_ahead(residual + i, count) + load_ahead(grad + i, count);
  }));
}

}  // namespace gradwire::GRADWIRE_TARGET
