// Kernels of csrc/args/lowrank.h: products with thin factors.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/lowrank_add_decoded.h"
#include "kernels/lowrank_left.h"
#include "kernels/lowrank_right.h"
#endif

#include "targets/end.h"
