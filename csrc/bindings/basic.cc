// Casts.
#include "bindings/common.h"

namespace gradwire::bindings {

namespace {

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
  kernel(m, "cast_encode", &cast_encode, "x"_a, "out"_a, "scale"_a, "to"_a);
  kernel(m, "cast_encode_feedback", &cast_encode_feedback, "grad"_a, "residual"_a, "out"_a, "to"_a, "status"_a);
  kernel(m, "cast_add_decoded", &cast_add_decoded, "payloads"_a, "count"_a, "stride"_a, "out"_a, "scale"_a, "to"_a);
}

}  // namespace gradwire::bindings
