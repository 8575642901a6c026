// The sign of a mean of signs, in its place.
#pragma once

#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// Below this a mean is a tie whose terms did not cancel in the last bits: a majority of one in 2048 ranks is 2^-11.
constexpr float kTie = 0x1p-12f;

GRADWIRE_INLINE void sign_vote_step(const SignVote& k, std::int64_t i, int count) {
  const F32 mean = load_ahead(k.mean + i, count), one = set(1.0f), minus_one = set(-1.0f);
  const F32 decided = select(gt(mean, set(0.0f)), one, minus_one);
  const F32 tie = select(le(as_f32(abs_bits(mean)), set(kTie)), set(k.tie), decided);
  const Mask number = le(as_f32(abs_bits(mean)), set(INFINITY));
  store(k.mean + i, select(number, tie, mean), count);
}

GRADWIRE_RANGE_KERNEL(sign_vote, SignVote, kLanes)

}  // namespace gradwire::GRADWIRE_TARGET
