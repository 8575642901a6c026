// Powers of two of residual + grad; the residual keeps what the codes do not say. One pass over memory.
#pragma once

#include "kernels/compensate.h"
#include "kernels/natural_block.h"

namespace gradwire::GRADWIRE_TARGET {

// Leaves the sum in the residual; the largest magnitude joins `worst`.
GRADWIRE_INLINE void natural_compensate(const NaturalEncodeFeedback& k, std::int64_t begin, std::int64_t end,
                                        U32& worst) {
  U32 unwatched = set_u32(0);  // `worst` sees the sum with or without a status.
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) {
    const F32 x = compensate(k, i, kLanes, unwatched);
    store(k.residual + i, x), watch(worst, x);
  }
  if (i == end) return;
  const F32 x = compensate(k, i, int(end - i), unwatched);
  store(k.residual + i, x, int(end - i)), watch(worst, x);
}

void natural_encode_feedback(const NaturalEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const NaturalEncodeFeedback k = args;
  NaturalWords words = natural_words(k);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    U32 worst = set_u32(0);
    natural_compensate(k, i, i + count, worst);
    if (k.status) flag_nonfinite(k.status, worst);
    float* const x = k.residual + i;
    natural_block<true>(k, words, {x, x, k.codes + i, 0}, i, count, natural_base(worst));
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
