// What all families share, on a CPU: the kernels, and the operations of shared.py, which says what they do.
#include <cmath>
#include <limits>

#include "family.h"
#include "magnitudes.h"
#include "marks.h"
#include "philox.h"

namespace gradwire {

struct Triad {
  float* a;
  const float* b;
  const float* c;
  float s;
  bool past_cache;  // a is larger than a cache and aligned to a vector: write it without reading it first
};
GRADWIRE_KERNEL(triad, Triad)

struct Nonfinite {
  const float* x;
  std::int32_t* status;
  float factor;
};
GRADWIRE_KERNEL(nonfinite, Nonfinite)

// The same of 16-bit floats, whose exponent has these bits.
struct Nonfinite16 {
  const std::uint16_t* x;
  std::int32_t* status;
  std::uint16_t exponent;
};
GRADWIRE_KERNEL(nonfinite_16, Nonfinite16)

// `status` may be null; otherwise a product that is not finite sets it.
struct Scale {
  float* x;
  float factor;
  std::int32_t* status;
};
GRADWIRE_KERNEL(scale, Scale)

struct Swap {
  float* a;
  float* b;
};
GRADWIRE_KERNEL(swap, Swap)

struct Copy {
  const float* source;
  float* target;
};
GRADWIRE_KERNEL(copy_floats, Copy)

struct Fill {
  float* out;
  float value;
};
GRADWIRE_KERNEL(fill_floats, Fill)

GRADWIRE_KERNEL(accumulate, Feedback)

GRADWIRE_KERNEL(momentum_update, MomentumUpdate)

// `status` may be null; otherwise a sum that is not finite sets it.
struct AddScaled {
  float* x;
  const float* y;
  float factor;
  std::int32_t* status;
};
GRADWIRE_KERNEL(add_scaled, AddScaled)

// `undo` and `status` may be null.
struct AccumulateMomentum {
  float* grad;
  float* momentum;
  float* undo;
  float beta;
  bool nesterov;
  std::int32_t* status;
};
GRADWIRE_KERNEL(accumulate_momentum, AccumulateMomentum)

struct MaskMomentum {
  float* velocity;
  float* momentum;
  const float* sent;
};
GRADWIRE_KERNEL(mask_momentum, MaskMomentum)

// `status` may be null; otherwise a quotient that is not finite sets it.
struct Precondition {
  float* grad;
  const float* scale;
  std::int32_t* status;
};
GRADWIRE_KERNEL(precondition, Precondition)

// A sum of the squares of the scales for each block, and one of what arrives, in float64.
struct ScaleSquares {
  const float* out;
  const float* scale;
  double* scales;
  double* arrived;
};
GRADWIRE_KERNEL(scale_squares, ScaleSquares)

// `unit` is a power of two, `inverse` one over it, and `factor` that times what the old scales grow by; no scale becomes
// smaller than `least`. Where `still` scales stay.
struct PreconditionUpdate {
  float* out;
  float* scale;
  float beta, rest, unit, inverse, factor, least;
  bool still;
};
GRADWIRE_KERNEL(precondition_update, PreconditionUpdate)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/bit_words.h"
#include "kernels/block_sums.h"
#include "kernels/compensate.h"
#include "kernels/momentum.h"
#include "kernels/philox_words.h"

namespace gradwire::GRADWIRE_TARGET {

// a = b + s * c: the yardstick of the benchmarks, two arrays read and one written.
GRADWIRE_INLINE void triad_range_step(const Triad& k, std::int64_t i, int count) {
  const F32 a = load_ahead(k.b + i, count) + set(k.s) * load_ahead(k.c + i, count);
  if (k.past_cache && count == kLanes)
    store_past_cache(k.a + i, a);
  else
    store(k.a + i, a, count);
}

GRADWIRE_RANGE_KERNEL(triad_range, Triad, kLanes)

void triad(const Triad& k, std::int64_t begin, std::int64_t end) {
  triad_range(k, begin, end);
  finish_stores();
}

GRADWIRE_INLINE void nonfinite_step(const Nonfinite& k, std::int64_t i, int count, U32& worst) {
  watch(worst, load_ahead(k.x + i, count) * set(k.factor));
}

GRADWIRE_WATCHING_KERNEL(nonfinite, Nonfinite, kLanes)

void nonfinite_16(const Nonfinite16& args, std::int64_t begin, std::int64_t end) {
  const Nonfinite16 k = args;
  std::uint16_t found = 0;
  // A plain loop: the compiler makes vectors of it for every target.
  for (std::int64_t i = begin; i < end; ++i) found |= std::uint16_t((k.x[i] & k.exponent) == k.exponent);
  if (found) __atomic_fetch_or(k.status, 1, __ATOMIC_RELAXED);
}

GRADWIRE_INLINE void scale_step(const Scale& k, std::int64_t i, int count, U32& worst) {
  const F32 product = load_ahead(k.x + i, count) * set(k.factor);
  watch(worst, product);
  store(k.x + i, product, count);
}

GRADWIRE_WATCHING_KERNEL(scale, Scale, kLanes)

GRADWIRE_INLINE void swap_step(const Swap& k, std::int64_t i, int count) {
  const F32 a = load_ahead(k.a + i, count), b = load_ahead(k.b + i, count);
  store(k.a + i, b, count);
  store(k.b + i, a, count);
}

GRADWIRE_RANGE_KERNEL(swap, Swap, kLanes)

GRADWIRE_INLINE void copy_floats_step(const Copy& k, std::int64_t i, int count) {
  store(k.target + i, load_ahead(k.source + i, count), count);
}

GRADWIRE_RANGE_KERNEL(copy_floats, Copy, kLanes)

GRADWIRE_INLINE void fill_floats_step(const Fill& k, std::int64_t i, int count) {
  store(k.out + i, set(k.value), count);
}

GRADWIRE_RANGE_KERNEL(fill_floats, Fill, kLanes)

// residual = residual + grad: the first step of error feedback alone.
GRADWIRE_INLINE void accumulate_step(const Feedback& k, std::int64_t i, int count, U32& worst) {
  store(k.residual + i, compensate(k, i, count, worst), count);
}

GRADWIRE_WATCHING_KERNEL(accumulate, Feedback, kLanes)

GRADWIRE_INLINE void momentum_update_step(const MomentumUpdate& k, std::int64_t i, int count, U32& worst) {
  advance(k, i, count, worst);
}

GRADWIRE_WATCHING_KERNEL(momentum_update, MomentumUpdate, kLanes)

GRADWIRE_INLINE void add_scaled_step(const AddScaled& k, std::int64_t i, int count, U32& worst) {
  const F32 x = load_ahead(k.x + i, count) + load_ahead(k.y + i, count) * set(k.factor);
  watch(worst, x);
  store(k.x + i, x, count);
}

GRADWIRE_WATCHING_KERNEL(add_scaled, AddScaled, kLanes)

// What the velocity grows by is the new momentum, or, looking ahead, that and the gradient.
GRADWIRE_INLINE void accumulate_momentum_step(const AccumulateMomentum& k, std::int64_t i, int count, U32& worst) {
  const F32 old = load_ahead(k.momentum + i, count), grad = load_ahead(k.grad + i, count), beta = set(k.beta);
  const F32 now = k.nesterov ? (old + grad) * beta : old * beta + grad;
  const F32 growth = k.nesterov ? grad + now : now;
  watch(worst, growth);
  if (k.undo) store(k.undo + i, old, count);
  store(k.momentum + i, now, count);
  store(k.grad + i, growth, count);
}

GRADWIRE_WATCHING_KERNEL(accumulate_momentum, AccumulateMomentum, kLanes)

GRADWIRE_INLINE void mask_momentum_step(const MaskMomentum& k, std::int64_t i, int count) {
  const F32 sent = load_ahead(k.sent + i, count), momentum = load_ahead(k.momentum + i, count);
  store(k.velocity + i, load_ahead(k.velocity + i, count) - sent, count);
  store(k.momentum + i, select(eq(abs_bits(sent), set_u32(0)), momentum, set(0.0f)), count);
}

GRADWIRE_RANGE_KERNEL(mask_momentum, MaskMomentum, kLanes)

void philox(const Philox& k, std::int64_t begin, std::int64_t end) {
  const std::int64_t whole = (end - begin) / kPhiloxWords, rest = (end - begin) % kPhiloxWords;
  const std::uint64_t counter = k.offset + std::uint64_t(begin) / 4;
  const PhiloxStream stream = philox_stream(k.key, k.step);
  philox_words(k.out + begin, counter, whole, stream);
  if (rest == 0) return;
  std::uint32_t words[kPhiloxWords];
  philox_words(words, counter + 8 * std::uint64_t(whole), 1, stream);
  std::memcpy(k.out + begin + kPhiloxWords * whole, words, sizeof(std::uint32_t) * std::size_t(rest));
}

// The sum of magnitudes of every block.
GRADWIRE_INLINE F32 magnitude_of(const MagnitudeSums& k, std::int64_t i, int count) {
  const F32 x = load_ahead(k.x + i, count);
  return magnitude(k.residual ? load_ahead(k.residual + i, count) + x : x);
}

void magnitude_sums(const MagnitudeSums& args, std::int64_t begin, std::int64_t end) {
  const MagnitudeSums k = args;
  for (std::int64_t i = begin; i < end; i += k.block) {
    LaneSums sums = no_sums();
    each_step(i, block_end(i, k.block, end), [&](std::int64_t j, int count) GRADWIRE_STEP {
      add_to(sums, magnitude_of(k, j, first_of(count)), magnitude_of(k, j + kLanes, second_of(count)));
    });
    k.sums[i / k.block] = total(sums);
  }
}

// A scale of 0 counts as 1.
GRADWIRE_INLINE F32 divisor(F32 scale) { return select(eq(abs_bits(scale), set_u32(0)), set(1.0f), scale); }

GRADWIRE_INLINE void precondition_step(const Precondition& k, std::int64_t i, int count, U32& worst) {
  const F32 x = load_ahead(k.grad + i, count) / divisor(load_ahead(k.scale + i, count));
  watch(worst, x);
  store(k.grad + i, x, count);
}

GRADWIRE_WATCHING_KERNEL(precondition, Precondition, kLanes)

// The sum of squares of a block, in 32 lanes and then as a tree; a square of a float32 is exact.
template <class Value>
GRADWIRE_INLINE double sum_of_squares(std::int64_t begin, std::int64_t end, const Value& value) {
  constexpr int kSums = 2 * kLanes;
  double sums[kSums] = {};
  std::int64_t i = begin;
  // Plain loops: the compiler makes vectors of them for every target.
  for (; end - i >= kSums; i += kSums)
    for (int lane = 0; lane < kSums; ++lane) sums[lane] += double(value(i + lane)) * double(value(i + lane));
  for (int lane = 0; i < end; ++lane, ++i) sums[lane] += double(value(i)) * double(value(i));
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

void scale_squares(const ScaleSquares& args, std::int64_t begin, std::int64_t end) {
  const ScaleSquares k = args;
  for (std::int64_t i = begin; i < end; i += kSumBlock) {
    const std::int64_t stop = block_end(i, kSumBlock, end);
    k.scales[i / kSumBlock] = sum_of_squares(i, stop, [=](std::int64_t j) GRADWIRE_STEP { return k.scale[j]; });
    k.arrived[i / kSumBlock] = sum_of_squares(i, stop, [=](std::int64_t j) GRADWIRE_STEP {
      const float arrived = k.out[j] * (k.scale[j] == 0.0f ? 1.0f : k.scale[j]);
      // What is not finite says nothing.
      return std::fabs(arrived) <= std::numeric_limits<float>::max() ? arrived : 0.0f;
    });
  }
}

// out = out * scale, and scale = max(sqrt(beta scale^2 + (1 - beta) out^2), least), where the old scale has grown.
GRADWIRE_INLINE void precondition_update_step(const PreconditionUpdate& k, std::int64_t i, int count) {
  const F32 scale = load_ahead(k.scale + i, count);
  const F32 arrived = load_ahead(k.out + i, count) * divisor(scale);
  store(k.out + i, arrived, count);
  if (k.still) return;
  const F32 size = magnitude(arrived);
  const F32 before = min(scale * set(k.factor), set(0x1p60f)), now = min(size * set(k.inverse), set(0x1p60f));
  const F32 moved = sqrt(before * before * set(k.beta) + now * now * set(k.rest)) * set(k.unit);
  const F32 least = set(k.least);
  // What is not finite says nothing.
  store(k.scale + i, select(lt(size, set(__builtin_inff())), select(lt(moved, least), least, moved), scale), count);
}

GRADWIRE_RANGE_KERNEL(precondition_update, PreconditionUpdate, kLanes)

// How many marks each segment has.
void count_ones(const CountOnes& args, std::int64_t begin, std::int64_t end) {
  const CountOnes k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment;
    std::int64_t found = 0;
    for (std::int64_t i = first; i < stop; i += 64) found += __builtin_popcountll(bits_of_elements(k.bitmap, i, k.n));
    k.counts[first / kMarkSegment] = found;
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <algorithm>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

// From this size on, 8 MB, writing around the caches was measured faster than through them.
constexpr Size kPastCache = Size{1} << 21;

// 2^-100: a gradient that comes after many steps of zeros can be divided by it.
constexpr float kLeastScale = 0x1p-100f;

// The mean square of what arrives, over that of the scales, from which on gradients have grown and not only varied.
constexpr double kGrown = 4.0;

void triad(float* a, const float* b, const float* c, double s, Size n, int threads) {
  const bool past_cache = n >= kPastCache && reinterpret_cast<std::uintptr_t>(a) % 64 == 0;
  run(kernels::triad, {a, b, c, float(s), past_cache}, n, 16, threads);
}
GRADWIRE_OPERATION(triad)

void nonfinite(const void* x, Size type, std::int32_t* status, double factor, Size n, int threads) {
  if (type == 0) return run(kernels::nonfinite, {static_cast<const float*>(x), status, float(factor)}, n, 16, threads);
  // The bits of the exponent: all of them are set where there is no number.
  const std::uint16_t exponent = type == 1 ? 0x7f80 : 0x7c00;
  run(kernels::nonfinite_16, {static_cast<const std::uint16_t*>(x), status, exponent}, n, 64, threads);
}
GRADWIRE_OPERATION(nonfinite)

void scale(float* x, double factor, Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::scale, {x, float(factor), status.data}, n, 16, threads);
}
GRADWIRE_OPERATION(scale)

void swap(float* a, float* b, Size n, int threads) { run(kernels::swap, {a, b}, n, 16, threads); }
GRADWIRE_OPERATION(swap)

// `when` may be null: always.
bool wanted(Maybe<const std::uint8_t> when) { return when.data == nullptr || *when.data != 0; }

void copy_where(const float* source, float* target, Maybe<const std::uint8_t> when, Size n, int threads) {
  if (wanted(when)) run(kernels::copy_floats, {source, target}, n, 16, threads);
}
GRADWIRE_OPERATION(copy_where)

void fill_where(float* out, double value, Maybe<const std::uint8_t> when, Size n, int threads) {
  if (wanted(when)) run(kernels::fill_floats, {out, float(value)}, n, 16, threads);
}
GRADWIRE_OPERATION(fill_where)

void accumulate(float* grad, float* residual, Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::accumulate, {grad, residual, status.data}, n, 16, threads);
}
GRADWIRE_OPERATION(accumulate)

void momentum_update(float* grad, float* momentum, double beta, Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::momentum_update, {grad, momentum, status.data, float(beta), float(1.0 - beta)}, n, 16, threads);
}
GRADWIRE_OPERATION(momentum_update)

void add_scaled(float* x, const float* y, double factor, Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::add_scaled, {x, y, float(factor), status.data}, n, 16, threads);
}
GRADWIRE_OPERATION(add_scaled)

void accumulate_momentum(float* grad, float* momentum, Maybe<float> undo, double beta, bool nesterov,
                         Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::accumulate_momentum, {grad, momentum, undo.data, float(beta), nesterov, status.data}, n, 16, threads);
}
GRADWIRE_OPERATION(accumulate_momentum)

void mask_momentum(float* velocity, float* momentum, const float* sent, Size n, int threads) {
  run(kernels::mask_momentum, {velocity, momentum, sent}, n, 16, threads);
}
GRADWIRE_OPERATION(mask_momentum)

void philox(std::uint32_t* out, Size key, Size step, Size offset, Size n, int threads) {
  run(kernels::philox, {out, std::uint64_t(key), std::uint64_t(step), std::uint64_t(offset)}, n, 128, threads);
}
GRADWIRE_OPERATION(philox)

void precondition(float* grad, const float* scale, Maybe<std::int32_t> status, Size n, int threads) {
  run(kernels::precondition, {grad, scale, status.data}, n, 16, threads);
}
GRADWIRE_OPERATION(precondition)

void precondition_update(float* out, float* scale, const std::uint8_t* bad, double beta, double floor, Size n,
                         int threads) {
  const bool still = n > 0 && *bad != 0;
  const std::size_t blocks = std::size_t((n + kSumBlock - 1) / kSumBlock);
  std::vector<double> scales(blocks), squares(blocks);
  run(kernels::scale_squares, {out, scale, scales.data(), squares.data()}, n, kSumBlock, threads);
  const double count = double(std::max(n, Size{1}));
  const double level = sum_as_tree(scales) / count, arrived = sum_as_tree(squares) / count;
  if (level == 0.0) {
    // Nothing has arrived before: all scales begin alike, and what arrives stays as it is.
    const float first = mean_of_magnitudes(out, nullptr, n, threads);
    if (!still && first > 0.0f && std::isfinite(first)) std::fill_n(scale, n, std::max(first, kLeastScale));
    return;
  }
  const bool grown = arrived > kGrown * level;
  const double size = std::sqrt(grown ? arrived : level), growth = grown ? size / std::sqrt(level) : 1.0;
  int exponent = 0;
  std::frexp(size, &exponent);
  exponent = std::clamp(exponent, -100, 100);
  const double inverse = std::ldexp(1.0, -exponent);
  run(kernels::precondition_update,
      {out, scale, float(beta), float(1.0 - beta), std::ldexp(1.0f, exponent), float(inverse), float(growth * inverse),
       std::max(float(size * float(floor)), kLeastScale), still},
      n, 16, threads);
}
GRADWIRE_OPERATION(precondition_update)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(shared) {
  using namespace selftest;
  check(target, "triad", kernels::triad,
        [](Buffers& x, Size) { return Triad{x.a.data(), x.b.data(), x.c.data(), 0.3f, false}; });
  check(target, "nonfinite", kernels::nonfinite,
        [](Buffers& x, Size) { return Nonfinite{x.a.data(), x.status.data(), 0x1p32f}; });
  for (const std::uint16_t exponent : {0x7f80, 0x7c00}) {
    check(target, "nonfinite_16", kernels::nonfinite_16, [=](Buffers& x, Size) {
      return Nonfinite16{reinterpret_cast<const std::uint16_t*>(x.a.data()), x.status.data(), exponent};
    });
  }
  check(target, "scale", kernels::scale,
        [](Buffers& x, Size) { return Scale{x.a.data(), 0.3f, x.status.data()}; });
  check(target, "swap", kernels::swap, [](Buffers& x, Size) { return Swap{x.a.data(), x.b.data()}; });
  check(target, "copy_floats", kernels::copy_floats, [](Buffers& x, Size) { return Copy{x.a.data(), x.b.data()}; });
  check(target, "fill_floats", kernels::fill_floats, [](Buffers& x, Size) { return Fill{x.a.data(), 0.5f}; });
  check(target, "accumulate", kernels::accumulate,
        [](Buffers& x, Size) { return Feedback{x.a.data(), x.b.data(), x.status.data()}; });
  check(target, "momentum_update", kernels::momentum_update, [](Buffers& x, Size) {
    return MomentumUpdate{x.a.data(), x.b.data(), x.status.data(), 0.9f, 0.1f};
  });
  check(target, "add_scaled", kernels::add_scaled, [](Buffers& x, Size) {
    return AddScaled{x.a.data(), x.b.data(), -0.3f, x.status.data()};
  });
  for (const bool nesterov : {false, true}) {
    check(target, "accumulate_momentum", kernels::accumulate_momentum, [=](Buffers& x, Size) {
      return AccumulateMomentum{x.a.data(), x.b.data(), x.c.data(), 0.9f, nesterov, x.status.data()};
    });
  }
  check(target, "mask_momentum", kernels::mask_momentum,
        [](Buffers& x, Size) { return MaskMomentum{x.a.data(), x.b.data(), x.c.data()}; });
  check(target, "philox", kernels::philox, [](Buffers& x, Size) {
    return Philox{reinterpret_cast<std::uint32_t*>(x.bytes.data()), 0x123456789abcdef0, 7, 0xfffffff0};
  });
  for (const bool added : {false, true}) {
    check(target, "magnitude_sums", kernels::magnitude_sums, [=](Buffers& x, Size) {
      return MagnitudeSums{x.a.data(), added ? x.b.data() : nullptr, x.c.data(), 64};
    });
  }
  check(target, "count_ones", kernels::count_ones, [](Buffers& x, Size n) {
    return CountOnes{{x.bytes.data(), n / 9}, n, reinterpret_cast<std::int64_t*>(x.c.data())};
  });
  check(target, "precondition", kernels::precondition,
        [](Buffers& x, Size) { return Precondition{x.a.data(), x.b.data(), x.status.data()}; });
  check(target, "scale_squares", kernels::scale_squares, [](Buffers& x, Size n) {
    for (float& scale : x.b) scale = std::isfinite(scale) ? scale : 0.0f;
    double* sums = reinterpret_cast<double*>(x.c.data());
    return ScaleSquares{x.a.data(), x.b.data(), sums, sums + n / kSumBlock + 1};
  });
  for (const bool still : {false, true}) {
    check(target, "precondition_update", kernels::precondition_update, [=](Buffers& x, Size) {
      return PreconditionUpdate{x.a.data(), x.b.data(), 0.9f, 0.1f, 2.0f, 0.5f, 0.7f, 0.01f, still};
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
