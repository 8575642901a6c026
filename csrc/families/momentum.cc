// Kernels of csrc/args/momentum.h: what is kept to make or divide a gradient, and mean magnitudes.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/magnitude_sums.h"
#include "kernels/momentum_update.h"
#include "kernels/precondition.h"
#include "kernels/precondition_update.h"
#endif

#include "targets/end.h"
