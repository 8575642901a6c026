// How Python calls a C++ function.
#pragma once

#include <Python.h>

namespace gradwire {

// Sets the Python exception that stands for the C++ exception being handled; for a catch (...). Returns null.
PyObject* raise_caught();

// Adds all operations of operation.h to the module, under their names and, for many pieces in one call, as NAME_each.
// Returns whether that has worked; otherwise an exception is set.
bool define_operations(PyObject* module);

}  // namespace gradwire
