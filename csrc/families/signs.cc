// Kernels of csrc/args/signs.h: one bit for each element, and what is kept to make or divide a gradient.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/magnitude_sums.h"
#include "kernels/momentum_update.h"
#include "kernels/precondition.h"
#include "kernels/precondition_update.h"
#include "kernels/scaled_sign_add_decoded.h"
#include "kernels/scaled_sign_encode.h"
#include "kernels/scaled_sign_encode_feedback.h"
#include "kernels/sign_add_decoded.h"
#include "kernels/sign_encode.h"
#include "kernels/sign_encode_feedback.h"
#include "kernels/sign_vote.h"
#include "kernels/signum_encode.h"
#include "kernels/two_means_add_decoded.h"
#include "kernels/two_means_encode.h"
#include "kernels/two_means_encode_feedback.h"
#endif

#include "targets/end.h"
