// What all bindings share. The Python wrappers in gradwire/ops check what a tensor is; the bindings check only what
// would make the C++ code itself undefined.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>

#include "dispatch.h"

namespace gradwire::bindings {

namespace nb = nanobind;
using namespace nb::literals;

using Address = std::uintptr_t;
using Size = std::int64_t;

template <class T>
T* pointer(Address address, Size n) {
  if (n < 0) throw std::invalid_argument("a size must not be negative");
  if (n > 0 && address == 0) throw std::invalid_argument("an address must not be null where there are elements");
  return reinterpret_cast<T*>(address);
}

inline Rows rows(Address address, Size count, Size stride, Size n) {
  if (count < 0) throw std::invalid_argument("the number of payloads must not be negative");
  return {pointer<const std::uint8_t>(address, count > 0 ? n : 0), count, stride};
}

inline Feedback feedback(Address grad, Address residual, Address status, Size n) {
  return {pointer<float>(grad, n), pointer<float>(residual, n), reinterpret_cast<std::int32_t*>(status)};
}

// A function whose last arguments are the number of elements and of threads.
template <class Function, class... Arguments>
void kernel(nb::module_& m, const char* name, Function function, const Arguments&... arguments) {
  m.def(name, function, arguments..., "n"_a, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
}

void bind_entries(nb::module_& m);
void bind_rounding(nb::module_& m);

}  // namespace gradwire::bindings
