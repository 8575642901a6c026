// gradwire._kernels: the operations as Python functions over addresses and sizes. They come from ops/ and from the
// folders of the families.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "operation.h"
#include "tensors.h"

using namespace gradwire;

NB_MODULE(_kernels, m) {
  m.doc() = "The C++ kernels of gradwire.";
  in_forked_child();
#if defined(_OPENMP)
  m.attr("openmp") = true;
#else
  m.attr("openmp") = false;
#endif
  m.def("targets", &targets);
  m.def("target", [] { return std::string(active_target()); });
  m.def("set_target", &set_target, nanobind::arg("name"));
  m.def("calls", &calls, nanobind::arg("name"));
  m.def("region_count", &region_count);
  m.def("chunks_taken", &chunks_taken);
  m.def("hold_thread", &hold_thread, nanobind::arg("number"));
  m.def("set_retreat", &set_retreat, nanobind::arg("retreat"));
  define_tensors(m);
  for (const auto* each = operations::Operation::first; each != nullptr; each = each->next) each->define(m);
}
