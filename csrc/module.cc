// gradwire._kernels: the operations as Python functions over addresses and sizes. They come from kernels/ and from the
// folders of the families.
#include <Python.h>

#include <string>
#include <vector>

#include "calls.h"
#include "dispatch.h"
#include "tensors.h"

namespace gradwire {

namespace {

PyObject* text(const std::string& given) { return PyUnicode_FromStringAndSize(given.data(), Py_ssize_t(given.size())); }

PyObject* number(std::int64_t given) { return PyLong_FromLongLong(given); }

template <class T, class Make>
PyObject* list_of(const std::vector<T>& given, const Make& make) {
  PyObject* const list = PyList_New(Py_ssize_t(given.size()));
  for (std::size_t i = 0; list != nullptr && i < given.size(); ++i) {
    PyObject* const item = make(given[i]);
    if (item == nullptr) return Py_DECREF(list), nullptr;
    PyList_SET_ITEM(list, Py_ssize_t(i), item);
  }
  return list;
}

// Functions of a text: f(name) returns what Python gets.
template <class F>
PyObject* with_name(PyObject* given, const F& f) {
  const char* const name = PyUnicode_AsUTF8(given);
  if (name == nullptr) return nullptr;
  try {
    return f(name);
  } catch (...) {
    return raise_caught();
  }
}

PyObject* targets_of(PyObject*, PyObject*) { return list_of(targets(), text); }
PyObject* target_of(PyObject*, PyObject*) { return text(active_target()); }
PyObject* choose_target(PyObject*, PyObject* name) {
  return with_name(name, [](const char* chosen) { return set_target(chosen), Py_NewRef(Py_None); });
}
PyObject* calls_of(PyObject*, PyObject* name) {
  return with_name(name, [](const char* target) { return number(calls(target)); });
}
PyObject* regions_of(PyObject*, PyObject*) { return number(region_count()); }
PyObject* taken_of(PyObject*, PyObject*) { return list_of(chunks_taken(), number); }
PyObject* hold(PyObject*, PyObject* given) {
  const long thread = PyLong_AsLong(given);
  if (thread == -1 && PyErr_Occurred() != nullptr) return nullptr;
  hold_thread(int(thread));
  Py_RETURN_NONE;
}
PyObject* allow_retreat(PyObject*, PyObject* given) {
  const int allowed = PyObject_IsTrue(given);
  if (allowed < 0) return nullptr;
  set_retreat(allowed != 0);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"targets", targets_of, METH_NOARGS, "The SIMD targets of this CPU, best first."},
    {"target", target_of, METH_NOARGS, "The SIMD target in use."},
    {"set_target", choose_target, METH_O, "Uses this SIMD target from now on."},
    {"calls", calls_of, METH_O, "How many kernels of this target were started."},
    {"region_count", regions_of, METH_NOARGS, "Parallel regions since the program began."},
    {"chunks_taken", taken_of, METH_NOARGS, "The chunks of each thread in the last region in which one was held."},
    {"hold_thread", hold, METH_O, "Lets the thread of this number come late to each region; -1: none."},
    {"set_retreat", allow_retreat, METH_O, "Whether one thread works alone after a region that was slower."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", "The C++ kernels of gradwire.", -1, methods, nullptr, nullptr,
                          nullptr, nullptr};

bool fill(PyObject* module) {
#if defined(_OPENMP)
  PyObject* const openmp = Py_True;
#else
  PyObject* const openmp = Py_False;
#endif
  return PyModule_AddObjectRef(module, "openmp", openmp) == 0 && define_tensors(module) && define_operations(module);
}

}  // namespace

}  // namespace gradwire

PyMODINIT_FUNC PyInit__kernels() {
  PyObject* const module = PyModule_Create(&gradwire::definition);
  if (module == nullptr || gradwire::fill(module)) return module;
  Py_DECREF(module);
  return nullptr;
}
