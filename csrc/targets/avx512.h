// x86-64 with AVX-512 F, BW, DQ and VL: Intel servers since Skylake-SP (2017), AMD since Zen 4 (2022).
#include "targets/standard.h"
#if defined(__x86_64__)
#include <immintrin.h>
#define GRADWIRE_TARGET_HEADER "simd/avx512.h"
#define GRADWIRE_TARGET_FEATURES "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi2,f16c,popcnt"
#endif
