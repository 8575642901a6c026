// Kernels of csrc/args/sparse.h: the largest elements.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/sparse_add_decoded.h"
#include "kernels/topk_emit.h"
#include "kernels/topk_emit_found.h"
#include "kernels/topk_scan.h"
#include "kernels/topk_scan_feedback.h"
#endif

#include "targets/end.h"
