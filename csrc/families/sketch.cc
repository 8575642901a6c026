// Kernels of csrc/args/sketch.h: count sketches.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/sketch_add.h"
#include "kernels/sketch_estimate.h"
#endif

#include "targets/end.h"
