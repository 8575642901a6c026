// Kernels of csrc/args/thresholds.h: elements beyond a threshold.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/threshold_scan.h"
#endif

#include "targets/end.h"
