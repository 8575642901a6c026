// The last line of a file that is compiled once for each SIMD target: targets/begin.h says how.
#if defined(GRADWIRE_TARGET_FEATURES) && defined(__clang__)
#pragma clang attribute pop
#elif defined(GRADWIRE_TARGET_FEATURES)
#pragma GCC pop_options
#endif
