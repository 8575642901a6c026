// The signs of a momentum on a CPU: the kernel, and the operation of ops.py, which says what the bytes are.
#include "family.h"

namespace gradwire {

struct SignumEncode : MomentumUpdate {
  std::uint8_t* codes;
};
GRADWIRE_KERNEL_SECOND(signum_encode, SignumEncode)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/block_sums.h"
#include "kernels/momentum.h"
#include "kernels/sign_bits.h"

namespace gradwire::GRADWIRE_TARGET {

// The running mean of gradients and its signs, in one pass over memory.
GRADWIRE_INLINE void signum_encode_step(const SignumEncode& k, std::int64_t i, int count, U32& worst) {
  const Mask first = positive(advance(k, i, first_of(count), worst));
  const Mask second = positive(advance(k, i + kLanes, second_of(count), worst));
  store_signs(k.codes + i / 8, sign_word(first, second, count), count);
}

GRADWIRE_WATCHING_KERNEL(signum_encode, SignumEncode, kSignStep)

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

void signum_encode(float* grad, float* momentum, std::uint8_t* codes, double beta, Maybe<std::int32_t> status, Size n,
                   int threads) {
  run(kernels::signum_encode, {{grad, momentum, status.data, float(beta), float(1.0 - beta)}, codes}, n, 32, threads);
}
GRADWIRE_OPERATION(signum_encode)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(signum) {
  using namespace selftest;
  for (const bool watched : {false, true})
    check(target, "signum_encode", kernels::signum_encode, [=](Buffers& x, Size) {
      std::int32_t* const status = watched ? x.status.data() : nullptr;
      return SignumEncode{{x.a.data(), x.b.data(), status, 0.9f, 0.1f}, x.bytes.data()};
    });
}
#endif

}  // namespace gradwire::operations

#endif
