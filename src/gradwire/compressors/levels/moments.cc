// Moments of segments on a CPU: the kernels, and the operations of ops.py, which says what they are.
#include "family.h"

namespace gradwire {

constexpr std::int64_t kMomentSegment = 4096;

// For each segment four numbers: the largest magnitude, the origin (the first element if `centred`, else 0), the sum of
// the distances from it, and the sum of their squares.
struct Moments {
  const float* x;
  float* table;
  bool centred;
};
GRADWIRE_KERNEL(moments, Moments)

struct MomentsFeedback : Feedback {
  float* table;
  bool centred;
};
GRADWIRE_KERNEL(moments_feedback, MomentsFeedback)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/compensate.h"
#include "kernels/lane_sums.h"
#include "kernels/units.h"

namespace gradwire::GRADWIRE_TARGET {

struct Segment {
  U32 largest;
  F32 origin, sum, squares;
};

GRADWIRE_INLINE Segment segment_at(float origin) { return {set_u32(0), set(origin), set(0.0f), set(0.0f)}; }

// Lanes beyond `count` hold zero, which is not at a distance of zero from the origin.
GRADWIRE_INLINE void add_to(Segment& s, F32 x, int count) {
  watch(s.largest, x);
  F32 distance = x - s.origin;
  if (count != kLanes) distance = select(mask_of(bits_of_count(count)), distance, set(0.0f));
  s.sum = s.sum + distance;
  s.squares = s.squares + distance * distance;
}

// The sums are in units of 2^e: of the exponent of the largest magnitude where squares might vanish or overflow, else 0.
GRADWIRE_INLINE int exponent_of_sums(std::uint32_t largest) {
  constexpr int kUsual = 40;
  const int exponent = exponent_of(largest);
  return exponent >= -kUsual && exponent <= kUsual ? 0 : exponent;
}

static Segment sums_in_units(const float* x, std::int64_t count, float origin, float unit) {
  Segment s = segment_at(origin);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const int lanes = int(count - i < kLanes ? count - i : kLanes);
    F32 distance = (load(x + i, lanes) - s.origin) * set(unit);
    if (lanes != kLanes) distance = select(mask_of(bits_of_count(lanes)), distance, set(0.0f));
    s.sum = s.sum + distance;
    s.squares = s.squares + distance * distance;
  }
  return s;
}

// The row of a segment whose `count` elements are at x.
GRADWIRE_INLINE void write_moments(float* row, const Segment& found, float origin, const float* x, std::int64_t count) {
  const std::uint32_t largest = reduce_max(found.largest);
  const int exponent = exponent_of_sums(largest);
  const Segment s = exponent == 0 ? found : sums_in_units(x, count, origin, power_of_two(-exponent));
  std::memcpy(row, &largest, sizeof largest);
  row[1] = origin, row[2] = sum_of_lanes(s.sum), row[3] = sum_of_lanes(s.squares);
}

void moments(const Moments& args, std::int64_t begin, std::int64_t end) {
  const Moments k = args;
  for (std::int64_t first = begin; first < end; first += kMomentSegment) {
    const std::int64_t after = end - first < kMomentSegment ? end : first + kMomentSegment;
    const float origin = k.centred ? k.x[first] : 0.0f;
    Segment s = segment_at(origin);
    std::int64_t i = first;
    for (; after - i >= kLanes; i += kLanes) add_to(s, load_ahead(k.x + i, kLanes), kLanes);
    if (i < after) add_to(s, load(k.x + i, int(after - i)), int(after - i));
    write_moments(k.table + first / kMomentSegment * 4, s, origin, k.x + first, after - first);
  }
}

// The moments of residual + grad, which becomes the residual: the first of two passes with error feedback.

GRADWIRE_INLINE void moments_feedback_step(const MomentsFeedback& k, std::int64_t i, int count, Segment& s,
                                           U32& worst) {
  const F32 x = compensate(k, i, count, worst);
  store(k.residual + i, x, count);
  add_to(s, x, count);
}

void moments_feedback(const MomentsFeedback& args, std::int64_t begin, std::int64_t end) {
  const MomentsFeedback k = args;
  U32 worst = set_u32(0);
  for (std::int64_t first = begin; first < end; first += kMomentSegment) {
    const std::int64_t after = end - first < kMomentSegment ? end : first + kMomentSegment;
    const float origin = k.centred ? k.residual[first] + k.grad[first] : 0.0f;
    Segment s = segment_at(origin);
    std::int64_t i = first;
    for (; after - i >= kLanes; i += kLanes) moments_feedback_step(k, i, kLanes, s, worst);
    if (i < after) moments_feedback_step(k, i, int(after - i), s, worst);
    write_moments(k.table + first / kMomentSegment * 4, s, origin, k.residual + first, after - first);
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <cmath>
#include <vector>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

// A smaller norm counts as zero.
constexpr float kTiny = 0x1p-120f;

// Of one segment, in float64.
struct Sums {
  double origin, sum, squares, count;
};

std::uint32_t word_of(float x) {
  std::uint32_t word;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

// The unit of the sums, as exponent_of_sums() above chooses it.
double unit_of(std::uint32_t largest) {
  const int exponent = std::clamp(int(largest >> 23) - 127, -126, 126);
  return exponent >= -40 && exponent <= 40 ? 1.0 : std::ldexp(1.0, exponent);
}

// Halves are added to each other until one number is left.
double tree_sum(std::vector<double> values) {
  std::size_t size = 1;
  while (size < values.size()) size *= 2;
  values.resize(size, 0.0);
  while (size > 1) {
    size /= 2;
    for (std::size_t i = 0; i < size; ++i) values[i] += values[i + size];
  }
  return values[0];
}

float deviation_of(const std::vector<Sums>& segments, Size n) {
  std::vector<double> parts;
  for (const Sums& s : segments) parts.push_back(s.count * (s.origin + s.sum / s.count));
  const double mean = tree_sum(parts) / double(n);
  parts.clear();
  for (const Sums& s : segments) {
    const double spread = s.squares - s.sum * s.sum / s.count, away = s.origin + s.sum / s.count - mean;
    parts.push_back((spread < 0.0 ? 0.0 : spread) + s.count * away * away);
  }
  return float(std::sqrt(tree_sum(parts) / double(n)));
}

// What of a whole tensor is told from the moments of its segments.
void moments_norm(const float* table, float* norm, Size kind, double factor, Size n) {
  count_call();
  std::vector<Sums> segments;
  std::uint32_t word = 0;
  for (Size first = 0; first < n; first += kMomentSegment, table += 4) {
    const std::uint32_t largest = word_of(table[0]);
    const double unit = unit_of(largest);
    word = std::max(word, largest);
    segments.push_back({table[1], table[2] * unit, table[3] * (unit * unit),
                        double(std::min<Size>(kMomentSegment, n - first))});
  }
  float found;
  std::memcpy(&found, &word, sizeof found);
  if (kind == 1) {
    std::vector<double> squares;
    for (const Sums& s : segments) squares.push_back(s.squares);
    found = float(std::sqrt(tree_sum(squares)));
  }
  if (kind != 2) {
    found *= float(factor);
  } else if (factor != 0.0) {
    const float cut = deviation_of(segments, n) * float(factor);
    if (cut > 0.0f && cut < __builtin_inff() && found > cut) found = cut;
  }
  *norm = found < kTiny ? 0.0f : found;
}
GRADWIRE_OPERATION(moments_norm)

void moments(const float* x, float* table, bool centred, Size n, int threads) {
  run(kernels::moments, {x, table, centred}, n, kMomentSegment, threads);
}
GRADWIRE_OPERATION(moments)

void moments_feedback(float* grad, float* residual, float* table, bool centred, Maybe<std::int32_t> status, Size n,
                      int threads) {
  run(kernels::moments_feedback, {{grad, residual, status.data}, table, centred}, n, kMomentSegment, threads);
}
GRADWIRE_OPERATION(moments_feedback)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(moments) {
  using namespace selftest;
  for (const bool centred : {false, true}) {
    check(target, "moments", kernels::moments,
          [=](Buffers& x, Size) { return Moments{x.a.data(), x.c.data(), centred}; });
    check(target, "moments_feedback", kernels::moments_feedback, [=](Buffers& x, Size) {
      return MomentsFeedback{{x.a.data(), x.b.data(), x.status.data()}, x.c.data(), centred};
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
