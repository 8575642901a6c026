// Kernels of csrc/args/rounding.h: levels, rotations, moments and random numbers.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/block_norms.h"
#include "kernels/eden_add_decoded.h"
#include "kernels/eden_encode.h"
#include "kernels/moments.h"
#include "kernels/moments_feedback.h"
#include "kernels/philox.h"
#include "kernels/qsgd_add_decoded.h"
#include "kernels/qsgd_encode.h"
#include "kernels/qsgd_encode_feedback.h"
#include "kernels/round_encode.h"
#include "kernels/round_keep.h"
#include "kernels/sums_add_decoded.h"
#include "kernels/tail_moments.h"
#include "kernels/thc_add_decoded.h"
#include "kernels/thc_encode.h"
#endif

#include "targets/end.h"
