// The kernels: what each one is given, and the table that every SIMD target fills.
//
// A kernel is a serial function over the elements [begin, end) of its arguments. `begin` is a multiple of the
// alignment that csrc/bindings names for it, so two ranges never touch the same byte of output.
#pragma once

#include <cstdint>

#include "args/common.h"
#include "args/entries.h"
#include "args/rounding.h"

namespace gradwire {

constexpr std::uint32_t kDither = 0x9e3779b9;  // the golden ratio, in parts of 2^32

// One line per kernel: the name of the function in csrc/kernels/<name>.h, which a file of csrc/families includes, and
// the type of its arguments.
#define GRADWIRE_KERNELS(X)                          \
  X(add_waves, AddWaves)                             \
  X(block_norms, BlockNorms)                         \
  X(count_ones, CountOnes)                           \
  X(eden_add_decoded, EdenAddDecoded)                \
  X(eden_encode, EdenEncode)                         \
  X(thc_add_decoded, ThcAddDecoded)                  \
  X(thc_encode, ThcEncode)

struct KernelTable {
  const char* target;
#define X(name, Args) void (*name)(const Args&, std::int64_t begin, std::int64_t end);
  GRADWIRE_KERNELS(X)
#undef X
};

}  // namespace gradwire
