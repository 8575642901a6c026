// Kernels of csrc/args/thresholds.h: elements beyond a threshold.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/onebit_add_decoded.h"
#include "kernels/onebit_encode.h"
#include "kernels/onebit_encode_feedback.h"
#include "kernels/threshold_scan.h"
#endif

#include "targets/end.h"
