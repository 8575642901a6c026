// Casts, counters and what every method shares.
#include "bindings/common.h"

namespace gradwire::bindings {

namespace {

// From this size on, 8 MB, writing around the caches was measured faster than through them.
constexpr Size kPastCache = Size{1} << 21;

void triad(Address a, Address b, Address c, double s, Size n, int threads) {
  const bool past_cache = n >= kPastCache && a % 64 == 0;
  run(&KernelTable::triad,
      {pointer<float>(a, n), pointer<const float>(b, n), pointer<const float>(c, n), float(s), past_cache}, n, 16,
      threads);
}

void nonfinite(Address x, Address status, Size n, int threads) {
  run(&KernelTable::nonfinite, {pointer<const float>(x, n), pointer<std::int32_t>(status, 1)}, n, 16, threads);
}

void swap_(Address a, Address b, Size n, int threads) {
  run(&KernelTable::swap, {pointer<float>(a, n), pointer<float>(b, n)}, n, 16, threads);
}

void accumulate(Address grad, Address residual, Address status, Size n, int threads) {
  run(&KernelTable::accumulate, feedback(grad, residual, status, n), n, 16, threads);
}

CastTo cast_to(int to) {
  if (to < 0 || to > int(CastTo::float32)) throw std::invalid_argument("to must be from 0 to 2");
  return CastTo(to);
}

void cast_encode(Address x, Address out, double scale, int to, Size n, int threads) {
  run(&KernelTable::cast_encode,
      {pointer<const float>(x, n), pointer<std::uint8_t>(out, n), float(scale), cast_to(to)}, n, 16, threads);
}

void cast_encode_feedback(Address grad, Address residual, Address out, int to, Address status, Size n, int threads) {
  run(&KernelTable::cast_encode_feedback,
      {feedback(grad, residual, status, n), pointer<std::uint8_t>(out, n), cast_to(to)}, n, 16, threads);
}

void cast_add_decoded(Address payloads, Size count, Size stride, Address out, double scale, int to, Size n,
                      int threads) {
  run(&KernelTable::cast_add_decoded,
      {rows(payloads, count, stride, n), pointer<float>(out, n), float(scale), cast_to(to)}, n, 16, threads);
}

}  // namespace

void bind_basic(nb::module_& m) {
  kernel(m, "triad", &triad, "a"_a, "b"_a, "c"_a, "s"_a);
  kernel(m, "nonfinite", &nonfinite, "x"_a, "status"_a);
  kernel(m, "swap", &swap_, "a"_a, "b"_a);
  kernel(m, "accumulate", &accumulate, "grad"_a, "residual"_a, "status"_a);
  kernel(m, "cast_encode", &cast_encode, "x"_a, "out"_a, "scale"_a, "to"_a);
  kernel(m, "cast_encode_feedback", &cast_encode_feedback, "grad"_a, "residual"_a, "out"_a, "to"_a, "status"_a);
  kernel(m, "cast_add_decoded", &cast_add_decoded, "payloads"_a, "count"_a, "stride"_a, "out"_a, "scale"_a, "to"_a);
}

}  // namespace gradwire::bindings
