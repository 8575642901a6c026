// Kernels of csrc/args/entries.h: bits that mark elements, and waves of tiles.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/add_waves.h"
#include "kernels/count_ones.h"
#endif

#include "targets/end.h"
