// x86-64 with AVX2 and F16C: Intel since Haswell (2013), AMD since Excavator (2015).
#include "targets/standard.h"
#if defined(__x86_64__)
#include <immintrin.h>
#define GRADWIRE_TARGET_HEADER "simd/avx2.h"
#define GRADWIRE_TARGET_FEATURES "avx2,f16c,popcnt"
#endif
