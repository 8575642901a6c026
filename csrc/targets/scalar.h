// Plain loops for any CPU.
#include "targets/standard.h"
#define GRADWIRE_TARGET_HEADER "simd/scalar.h"
