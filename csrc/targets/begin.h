// The first line of a file that is compiled once for each SIMD target, with -DGRADWIRE_TARGET=<name>; the last is
// targets/end.h. What lies between is compiled with the target's instructions. targets/<name>.h defines
//   GRADWIRE_TARGET_HEADER    the target's vector types, in csrc/simd; not defined: not a target of this processor
//   GRADWIRE_TARGET_FEATURES  its instruction set extensions; not defined: the compiler's default
// Standard headers come first: a function of theirs compiled with a target's instructions could be the one copy
// that the linker keeps for all.
#define GRADWIRE_STRING_(x) #x
#define GRADWIRE_STRING(x) GRADWIRE_STRING_(x)
#define GRADWIRE_PRAGMA(x) _Pragma(#x)

#include "targets/standard.h"

#include GRADWIRE_STRING(targets/GRADWIRE_TARGET.h)


#if defined(GRADWIRE_TARGET_FEATURES) && defined(__clang__)
#define GRADWIRE_ATTRIBUTE(features) \
  GRADWIRE_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
GRADWIRE_ATTRIBUTE(GRADWIRE_TARGET_FEATURES)
#elif defined(GRADWIRE_TARGET_FEATURES)
#define GRADWIRE_ATTRIBUTE(features) GRADWIRE_PRAGMA(GCC target features)
#pragma GCC push_options
GRADWIRE_ATTRIBUTE(GRADWIRE_TARGET_FEATURES)
#endif
