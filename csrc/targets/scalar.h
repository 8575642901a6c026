// Plain loops for any CPU.
#define GRADWIRE_TARGET_HEADER "simd/scalar.h"
