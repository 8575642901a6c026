// The running mean of gradients and its signs, in one pass over memory.
#pragma once

#include "kernels/momentum_update.h"
#include "kernels/sign_codes.h"

namespace gradwire::GRADWIRE_TARGET {

GRADWIRE_INLINE void signum_encode_step(const SignumEncode& k, std::int64_t i, int count, U32& worst) {
  const Mask first = positive(advance(k, i, first_of(count), worst));
  const Mask second = positive(advance(k, i + kLanes, second_of(count), worst));
  store_signs(k.codes + i / 8, sign_word(first, second, count), count);
}

GRADWIRE_WATCHING_KERNEL(signum_encode, SignumEncode, kSignStep)

}  // namespace gradwire::GRADWIRE_TARGET
