// Plain loops for any CPU.
#define GRADWIRE_TARGET scalar
#define GRADWIRE_TARGET_HEADER "simd/scalar.h"
#include "targets/table.inc"
