// Kernels of csrc/args/rounding.h: norms, moments and rotations.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/block_norms.h"
#include "kernels/eden_add_decoded.h"
#include "kernels/eden_encode.h"
#include "kernels/thc_add_decoded.h"
#include "kernels/thc_encode.h"
#endif

#include "targets/end.h"
