// gradwire._kernels: the operations as Python functions over addresses and sizes. They come from the folders of their
// families, and from csrc/bindings.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/common.h"
#include "operation.h"

using namespace gradwire;
using namespace gradwire::bindings;

NB_MODULE(_kernels, m) {
  m.doc() = "The C++ kernels of gradwire.";
  in_forked_child();
#if defined(_OPENMP)
  m.attr("openmp") = true;
#else
  m.attr("openmp") = false;
#endif
  m.def("targets", &targets);
  m.def("target", [] { return std::string(active().target); });
  m.def("set_target", &set_target, "name"_a);
  m.def("calls", &calls, "name"_a);
  for (const auto* each = operations::Operation::first; each != nullptr; each = each->next) each->define(m);
  bind_entries(m);
  bind_rounding(m);
}
