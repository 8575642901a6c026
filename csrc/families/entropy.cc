// Kernels of csrc/args/entropy.h: decoding of entropy codes.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/rans_decode.h"
#endif

#include "targets/end.h"
