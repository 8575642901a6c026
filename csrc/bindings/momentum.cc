// What is kept to make or divide a gradient.
#include <algorithm>
#include <cmath>

#include "bindings/common.h"
#include "magnitudes.h"

namespace gradwire::bindings {

namespace {

// 2^-100: a gradient that comes after many steps of zeros can be divided by it.
constexpr float kLeastScale = 0x1p-100f;

void precondition(Address grad, Address scale, Address status, Size n, int threads) {
  run(&KernelTable::precondition,
      {pointer<float>(grad, n), pointer<const float>(scale, n), reinterpret_cast<std::int32_t*>(status)}, n, 16,
      threads);
}

void precondition_update(Address out, Address scale, Address bad, double beta, double floor, Size n, int threads) {
  float* const mean = pointer<float>(out, n);
  float* const scales = pointer<float>(scale, n);
  const bool still = *pointer<const std::uint8_t>(bad, 1) != 0;
  const float level = mean_of_magnitudes(scales, nullptr, n, threads);
  if (level == 0.0f) {
    // Nothing has arrived before: all scales begin alike, and what arrives stays as it is.
    const float first = mean_of_magnitudes(mean, nullptr, n, threads);
    if (!still && first > 0.0f && std::isfinite(first)) std::fill_n(scales, n, std::max(first, kLeastScale));
    return;
  }
  int exponent = 0;
  std::frexp(level, &exponent);
  exponent = std::clamp(exponent, -100, 100);
  run(&KernelTable::precondition_update,
      {mean, scales, float(beta), float(1.0 - beta), std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent),
       std::max(level * float(floor), kLeastScale), still},
      n, 16, threads);
}

void momentum_update(Address grad, Address momentum, double beta, Address status, Size n, int threads) {
  run(&KernelTable::momentum_update,
      {pointer<float>(grad, n), pointer<float>(momentum, n), reinterpret_cast<std::int32_t*>(status), float(beta),
       float(1.0 - beta)},
      n, 16, threads);
}

}  // namespace

void bind_momentum(nb::module_& m) {
  kernel(m, "precondition", &precondition, "grad"_a, "scale"_a, "status"_a);
  kernel(m, "precondition_update", &precondition_update, "out"_a, "scale"_a, "bad"_a, "beta"_a, "floor"_a);
  kernel(m, "momentum_update", &momentum_update, "grad"_a, "momentum"_a, "beta"_a, "status"_a);
}

}  // namespace gradwire::bindings
