// What a family of kernels begins with. Its file is compiled several times:
//
//   with -DGRADWIRE_TARGET=NAME   once for each SIMD target: the kernels, between targets/begin.h and targets/end.h
//   with -DGRADWIRE_SELFTEST      for a processor without Python: the operations, and their comparison of two targets
//   with neither                  what Python calls: the operations
//
//   namespace gradwire {
//   struct Halve { const float* x; float* out; };               the arguments of a kernel
//   GRADWIRE_KERNEL(halve, Halve)                               its name: kernels::halve
//   }
//   #if defined(GRADWIRE_TARGET)
//   #include "targets/begin.h"
//   #if defined(GRADWIRE_TARGET_HEADER)
//   namespace gradwire::GRADWIRE_TARGET { void halve(const Halve& k, std::int64_t begin, std::int64_t end) { ... } }
//   #endif
//   #include "targets/end.h"
//   #else
//   #include "operation.h"
//   namespace gradwire::operations {
//   static void halve(const float* x, float* out, Size n, int threads) { run(kernels::halve, {x, out}, n, 16, threads); }
//   GRADWIRE_OPERATION(halve)
//   }
//   #endif
//
// No table names a kernel: a library in which a target lacks one cannot be loaded.
#pragma once

#include <cstdint>

#include "arguments.h"

namespace gradwire {

// The place of the target in use in Kernel::of.
int active_place();

// A serial function over the elements [begin, end) of its arguments, for each target: in the order of dispatch.cc.
template <class Args>
struct Kernel {
  using Function = void(const Args& args, std::int64_t begin, std::int64_t end);
  Function* of[4];

  // In this thread, with the target in use.
  void operator()(const Args& args, std::int64_t begin, std::int64_t end) const { of[active_place()](args, begin, end); }
};

}  // namespace gradwire

#define GRADWIRE_DECLARE_(target, name, Args) \
  namespace target {                          \
  void name(const Args& args, std::int64_t begin, std::int64_t end); \
  }

// The same in a file that is not compiled for AVX-512, of those that CMakeLists.txt names as the second tier.
#if defined(__x86_64__)
#define GRADWIRE_KERNEL_SECOND(name, Args)                                             \
  GRADWIRE_DECLARE_(avx2, name, Args)                                                  \
  GRADWIRE_DECLARE_(scalar, name, Args)                                                \
  namespace kernels {                                                                  \
  constexpr Kernel<Args> name = {{&avx2::name, &avx2::name, &scalar::name}};           \
  }
#else
#define GRADWIRE_KERNEL_SECOND(name, Args) GRADWIRE_KERNEL(name, Args)
#endif

#if defined(__x86_64__)
#define GRADWIRE_KERNEL(name, Args)                                                    \
  GRADWIRE_DECLARE_(avx512, name, Args)                                                \
  GRADWIRE_DECLARE_(avx2, name, Args)                                                  \
  GRADWIRE_DECLARE_(scalar, name, Args)                                                \
  namespace kernels {                                                                  \
  constexpr Kernel<Args> name = {{&avx512::name, &avx2::name, &scalar::name}};         \
  }
#elif defined(__aarch64__)
#define GRADWIRE_KERNEL(name, Args)                                                    \
  GRADWIRE_DECLARE_(neon, name, Args)                                                  \
  GRADWIRE_DECLARE_(scalar, name, Args)                                                \
  namespace kernels {                                                                  \
  constexpr Kernel<Args> name = {{&neon::name, &scalar::name}};                        \
  }
#else
#define GRADWIRE_KERNEL(name, Args)                                                    \
  GRADWIRE_DECLARE_(scalar, name, Args)                                                \
  namespace kernels {                                                                  \
  constexpr Kernel<Args> name = {{&scalar::name}};                                     \
  }
#endif
