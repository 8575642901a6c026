// Kernels of csrc/args/basic.h: casts and plain sums.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/accumulate.h"
#include "kernels/cast_add_decoded.h"
#include "kernels/cast_encode.h"
#include "kernels/cast_encode_feedback.h"
#include "kernels/nonfinite.h"
#include "kernels/swap.h"
#include "kernels/triad.h"
#endif

#include "targets/end.h"
