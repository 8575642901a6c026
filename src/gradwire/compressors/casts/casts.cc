// Casts on a CPU: the kernels, and the operations of ops.py, which says what they do.
#include "family.h"

namespace gradwire {

enum class CastTo : int { float16, bfloat16, float32 };

struct CastEncode {
  const float* x;
  std::uint8_t* out;
  float scale;
  CastTo to;
};
GRADWIRE_KERNEL(cast_encode, CastEncode)

struct CastEncodeFeedback : Feedback {
  std::uint8_t* out;
  CastTo to;
};
GRADWIRE_KERNEL(cast_encode_feedback, CastEncodeFeedback)

struct CastAddDecoded {
  Rows payloads;
  float* out;
  float scale;
  CastTo to;
  bool fresh;  // out counts as 0
};
GRADWIRE_KERNEL(cast_add_decoded, CastAddDecoded)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/compensate.h"

namespace gradwire::GRADWIRE_TARGET {

// bfloat16: the upper half of a float32, rounded to nearest even.

GRADWIRE_INLINE F32 load_bf16(const void* p, int count) { return as_f32(shl(load_u16(p, count), 16)); }

// Rounding up a NaN could make it infinity or zero: it is cut off and kept quiet.
GRADWIRE_INLINE void store_bf16(void* p, F32 x, int count) {
  const U32 word = as_u32(x), upper = shr(word, 16);
  const U32 rounded = shr(word + set_u32(0x7fff) + (upper & set_u32(1)), 16);
  const Mask nan = gt(abs_bits(x), set_u32(0x7f800000));
  store_u16(p, select(nan, upper | set_u32(0x40), rounded), count);
}

// The floats of a cast: 16 lanes from and to memory.

template <CastTo kTo>
constexpr int kCastBytes = kTo == CastTo::float32 ? 4 : 2;

template <CastTo kTo>
GRADWIRE_INLINE F32 load_cast(const std::uint8_t* p, int count) {
  if constexpr (kTo == CastTo::float16) return load_f16(p, count);
  if constexpr (kTo == CastTo::bfloat16) return load_bf16(p, count);
  return load(reinterpret_cast<const float*>(p), count);
}

template <CastTo kTo>
GRADWIRE_INLINE void store_cast(std::uint8_t* p, F32 x, int count) {
  if constexpr (kTo == CastTo::float16)
    store_f16(p, x, count);
  else if constexpr (kTo == CastTo::bfloat16)
    store_bf16(p, x, count);
  else
    store(reinterpret_cast<float*>(p), x, count);
}

// Defines the kernel `name` as name##_to<kTo>() for the format that its arguments ask for.
#define GRADWIRE_CAST_KERNEL(name, Args)                                                            \
  void name(const Args& args, std::int64_t begin, std::int64_t end) {                               \
    constexpr decltype(&name##_to<CastTo::float16>) to[] = {                                        \
        name##_to<CastTo::float16>, name##_to<CastTo::bfloat16>, name##_to<CastTo::float32>};       \
    to[int(args.to)](args, begin, end);                                                             \
  }

// A scaled copy, in 16 bits as a rule.

template <CastTo kTo>
static void cast_encode_to(const CastEncode& args, std::int64_t begin, std::int64_t end) {
  const CastEncode k = args;
  const F32 scale = set(k.scale);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes)
    store_cast<kTo>(k.out + kCastBytes<kTo> * i, load_ahead(k.x + i, kLanes) * scale, kLanes);
  if (i < end) store_cast<kTo>(k.out + kCastBytes<kTo> * i, load(k.x + i, int(end - i)) * scale, int(end - i));
}

GRADWIRE_CAST_KERNEL(cast_encode, CastEncode)

// A copy of residual + grad, in 16 bits as a rule; the residual keeps what rounding took. One pass over memory.

template <CastTo kTo>
GRADWIRE_INLINE void cast_encode_feedback_step(const CastEncodeFeedback& k, std::int64_t i, int count, U32& worst) {
  std::uint8_t* const out = k.out + kCastBytes<kTo> * i;
  const F32 x = compensate(k, i, count, worst);
  store_cast<kTo>(out, x, count);
  const F32 rest = x - (kTo == CastTo::float32 ? x : load_cast<kTo>(out, count));
  // Infinite also where x was finite and its code is not.
  watch(worst, rest);
  store(k.residual + i, rest, count);
}

template <CastTo kTo>
static void cast_encode_feedback_to(const CastEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const CastEncodeFeedback k = args;
  U32 worst = set_u32(0);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) cast_encode_feedback_step<kTo>(k, i, kLanes, worst);
  if (i < end) cast_encode_feedback_step<kTo>(k, i, int(end - i), worst);
  if (k.status) flag_nonfinite(k.status, worst);
}

GRADWIRE_CAST_KERNEL(cast_encode_feedback, CastEncodeFeedback)

// Adds the scaled payloads of all ranks, one after the other, with the sums in registers.

constexpr int kCastSums = 4;

template <CastTo kTo, int kSums>
GRADWIRE_INLINE void cast_add_decoded_step(const CastAddDecoded& k, std::int64_t i, int count) {
  const F32 scale = set(k.scale);
  const std::uint8_t* p = k.payloads.data + kCastBytes<kTo> * i;
  F32 sums[kSums];
  for (int j = 0; j < kSums; ++j) sums[j] = k.fresh ? set(0.0f) : load_ahead(k.out + i + j * kLanes, count);
  for (std::int64_t w = 0; w < k.payloads.count; ++w, p += k.payloads.stride)
    for (int j = 0; j < kSums; ++j)
      sums[j] = sums[j] + scale * load_cast<kTo>(p + kCastBytes<kTo> * kLanes * j, count);
  for (int j = 0; j < kSums; ++j) store(k.out + i + j * kLanes, sums[j], count);
}

template <CastTo kTo>
static void cast_add_decoded_to(const CastAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const CastAddDecoded k = args;
  std::int64_t i = begin;
  for (; end - i >= kCastSums * kLanes; i += kCastSums * kLanes) cast_add_decoded_step<kTo, kCastSums>(k, i, kLanes);
  for (; end - i >= kLanes; i += kLanes) cast_add_decoded_step<kTo, 1>(k, i, kLanes);
  if (i < end) cast_add_decoded_step<kTo, 1>(k, i, int(end - i));
}

GRADWIRE_CAST_KERNEL(cast_add_decoded, CastAddDecoded)

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

CastTo cast_to(int to) {
  if (to < 0 || to > int(CastTo::float32)) throw std::invalid_argument("to must be from 0 to 2");
  return CastTo(to);
}

void cast_encode(const float* x, std::uint8_t* out, int to, double scale, Size n, int threads) {
  run(kernels::cast_encode, {x, out, float(scale), cast_to(to)}, n, 16, threads);
}
GRADWIRE_OPERATION(cast_encode)

void cast_encode_feedback(float* grad, float* residual, std::uint8_t* out, int to, Maybe<std::int32_t> status, Size n,
                          int threads) {
  run(kernels::cast_encode_feedback, {{grad, residual, status.data}, out, cast_to(to)}, n, 16, threads);
}
GRADWIRE_OPERATION(cast_encode_feedback)

void cast_add_decoded(Column payloads, int to, float* out, double scale, bool fresh, Size ranks, Size n, int threads) {
  run(kernels::cast_add_decoded, {payloads.rows(ranks), out, float(scale), cast_to(to), fresh}, n, 16, threads);
}
GRADWIRE_OPERATION(cast_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(cast) {
  using namespace selftest;
  for (const CastTo to : {CastTo::float16, CastTo::bfloat16, CastTo::float32}) {
    check(target, "cast_encode", kernels::cast_encode, [=](Buffers& x, Size) {
      return CastEncode{x.a.data(), x.bytes.data(), 0.3f, to};
    });
    check(target, "cast_encode_feedback", kernels::cast_encode_feedback, [=](Buffers& x, Size) {
      leave_one_nan(x);
      return CastEncodeFeedback{{x.a.data(), x.b.data(), x.status.data()}, x.bytes.data(), to};
    });
    for (const bool fresh : {false, true}) {
      check(target, "cast_add_decoded", kernels::cast_add_decoded, [=](Buffers& x, Size n) {
        return CastAddDecoded{x.rows(n), x.a.data(), 0.3f, to, fresh};
      });
    }
  }
}
#endif

}  // namespace gradwire::operations

#endif
