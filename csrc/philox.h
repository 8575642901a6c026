// Random words, from a key, a step and a position: the kernel of kernels/shared.cc, for families that draw on the CPU.
#pragma once

#include "family.h"

namespace gradwire {

struct Philox {
  std::uint32_t* out;
  std::uint64_t key, step, offset;
};
GRADWIRE_KERNEL(philox, Philox)

}  // namespace gradwire
