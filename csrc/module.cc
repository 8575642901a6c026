// gradwire._kernels: the kernels as Python functions over addresses and sizes, a family in each file of csrc/bindings.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/common.h"

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
  bind_basic(m);
  bind_eightbit(m);
  bind_entries(m);
  bind_entropy(m);
  bind_lowrank(m);
  bind_rounding(m);
  bind_signs(m);
  bind_sketch(m);
  bind_sparse(m);
  bind_thresholds(m);
}
