// Kernels of csrc/args/basic.h: casts.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/cast_add_decoded.h"
#include "kernels/cast_encode.h"
#include "kernels/cast_encode_feedback.h"
#endif

#include "targets/end.h"
