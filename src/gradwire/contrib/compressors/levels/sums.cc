// Sums of levels on a CPU: the kernels, and the operations of ops.py, which says what the bytes are.
#include "family.h"

namespace gradwire {

// Levels in bytes that ranks add up: `bias` stands for zero.
struct SumsEncode {
  const std::uint8_t* own;
  std::uint8_t* sums;
  std::uint8_t bias;
};
GRADWIRE_KERNEL_SECOND(sums_encode, SumsEncode)

struct SumsAddDecoded {
  const std::uint8_t* sums;
  float* out;
  std::int32_t bias;
  float step;
};
GRADWIRE_KERNEL_SECOND(sums_add_decoded, SumsAddDecoded)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

void sums_encode(const SumsEncode& args, std::int64_t begin, std::int64_t end) {
  const SumsEncode k = args;
  // A plain loop: the compiler makes vectors of it for every target.
  for (std::int64_t i = begin; i < end; ++i) k.sums[i] = std::uint8_t(k.own[i] + k.bias);
}

// Adds what sums of levels stand for.

GRADWIRE_INLINE void sums_add_decoded_step(const SumsAddDecoded& k, std::int64_t i, int count) {
  const F32 level = from_i32(load_u8(k.sums + i, count) - set_u32(std::uint32_t(k.bias)));
  store(k.out + i, load_ahead(k.out + i, count) + set(k.step) * level, count);
}

GRADWIRE_RANGE_KERNEL(sums_add_decoded, SumsAddDecoded, kLanes)

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

// The bytes of the levels, and after them a word that counts the ranks.
Size words_of(Size n) { return (n + 3) / 4; }

void sums_encode(const std::uint8_t* own, std::int32_t* codes, int levels, Size n, int threads) {
  auto* const sums = reinterpret_cast<std::uint8_t*>(codes);
  run(kernels::sums_encode, {own, sums, std::uint8_t(levels)}, n, 64, threads);
  if (n == 0) return;
  std::fill(sums + n, sums + 4 * words_of(n), std::uint8_t{0});
  codes[words_of(n)] = 1;
}
GRADWIRE_OPERATION(sums_encode)

void sums_add_decoded(const float* norm, const std::int32_t* codes, float* out, int levels, double scale, Size n,
                      int threads) {
  if (levels < 1) throw std::invalid_argument("levels must be at least 1");
  const std::int32_t world = n > 0 ? codes[words_of(n)] : 1;
  const bool fits = world > 0 && world <= 255 / (2 * levels);
  const std::int32_t bias = fits ? levels * world : 0;
  const float unit = fits ? (n > 0 ? *norm : 0.0f) / float(bias) : __builtin_nanf("");
  const auto* const sums = reinterpret_cast<const std::uint8_t*>(codes);
  run(kernels::sums_add_decoded, {sums, out, bias, float(scale) * unit}, n, 16, threads);
}
GRADWIRE_OPERATION(sums_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(sums) {
  using namespace selftest;
  check(target, "sums_encode", kernels::sums_encode, [](Buffers& x, Size) {
    return SumsEncode{reinterpret_cast<const std::uint8_t*>(x.a.data()), x.bytes.data(), 7};
  });
  check(target, "sums_add_decoded", kernels::sums_add_decoded,
        [](Buffers& x, Size) { return SumsAddDecoded{x.bytes.data(), x.a.data(), 100, 0.3f}; });
}
#endif

}  // namespace gradwire::operations

#endif
