// 64-bit Arm: NEON is part of the base instruction set.
#include "targets/standard.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#define GRADWIRE_TARGET_HEADER "simd/neon.h"
#endif
