// 64-bit Arm: NEON is part of the base instruction set.
#if defined(__aarch64__)
#define GRADWIRE_TARGET_HEADER "simd/neon.h"
#endif
