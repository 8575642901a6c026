// Kernels of csrc/args/eightbit.h: codes of a byte for each element.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/add_buckets.h"
#include "kernels/eightbit_add_decoded.h"
#include "kernels/eightbit_encode.h"
#include "kernels/eightbit_encode_feedback.h"
#include "kernels/inceptionn_add_decoded.h"
#include "kernels/inceptionn_codes.h"
#include "kernels/inceptionn_sizes.h"
#include "kernels/inceptionn_tags.h"
#include "kernels/largest.h"
#include "kernels/largest_sum.h"
#endif

#include "targets/end.h"
