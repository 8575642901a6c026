// Moments of the magnitudes between two thresholds on a CPU: the kernel, and the operation of ops.py.
#include "family.h"

namespace gradwire {

// Of low < |x| < high, for each segment: the largest |x| of all elements, how many, the sum of y and of y^2 with
// y = (|x| - low) * unit.
constexpr std::int64_t kTailSegment = 1024;

struct TailMoments {
  const float* x;
  float* table;
  float low, high, unit;
};
GRADWIRE_KERNEL_SECOND(tail_moments, TailMoments)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/lane_sums.h"

namespace gradwire::GRADWIRE_TARGET {

struct Tail {
  U32 largest;
  F32 count, sum, squares;
};

// Lanes beyond `count` hold zero, which is never above `low`.
GRADWIRE_INLINE void add_to(Tail& t, const TailMoments& k, std::int64_t i, int count) {
  const F32 x = load_ahead(k.x + i, count), size = as_f32(abs_bits(x));
  watch(t.largest, x);
  const Mask inside = gt(size, set(k.low)) & lt(size, set(k.high));
  const F32 y = select(inside, (size - set(k.low)) * set(k.unit), set(0.0f));
  t.count = t.count + select(inside, set(1.0f), set(0.0f));
  t.sum = t.sum + y;
  t.squares = t.squares + y * y;
}

GRADWIRE_INLINE void write_tail(float* row, const Tail& t) {
  const std::uint32_t largest = reduce_max(t.largest);
  std::memcpy(row, &largest, sizeof largest);
  row[1] = sum_of_lanes(t.count), row[2] = sum_of_lanes(t.sum), row[3] = sum_of_lanes(t.squares);
}

void tail_moments(const TailMoments& args, std::int64_t begin, std::int64_t end) {
  const TailMoments k = args;
  for (std::int64_t first = begin; first < end; first += kTailSegment) {
    const std::int64_t after = end - first < kTailSegment ? end : first + kTailSegment;
    Tail t = {set_u32(0), set(0.0f), set(0.0f), set(0.0f)};
    std::int64_t i = first;
    for (; after - i >= kLanes; i += kLanes) add_to(t, k, i, kLanes);
    if (i < after) add_to(t, k, i, int(after - i));
    write_tail(k.table + first / kTailSegment * 4, t);
  }
}

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

void tail_moments(const float* x, float* table, double low, double high, double unit, Size n, int threads) {
  run(kernels::tail_moments, {x, table, float(low), float(high), float(unit)}, n, kTailSegment, threads);
}
GRADWIRE_OPERATION(tail_moments)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(tails) {
  using namespace selftest;
  check(target, "tail_moments", kernels::tail_moments,
        [](Buffers& x, Size) { return TailMoments{x.a.data(), x.c.data(), 0.1f, 2.5f, 0.5f}; });
}
#endif

}  // namespace gradwire::operations

#endif
