// Kernels of csrc/args/buckets.h: sums of what codes stand for.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/add_buckets.h"
#endif

#include "targets/end.h"
