// Kernels of csrc/args/entries.h: marks, chosen elements, exponents and ternary digits.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/add_waves.h"
#include "kernels/count_ones.h"
#include "kernels/exponent_add_decoded.h"
#include "kernels/exponent_codes.h"
#include "kernels/mark_beyond.h"
#include "kernels/mark_drawn.h"
#include "kernels/spread_marked.h"
#include "kernels/take_beyond.h"
#include "kernels/take_drawn.h"
#include "kernels/take_marked.h"
#endif

#include "targets/end.h"
