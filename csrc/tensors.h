// What Python's tensors are, read without torch's dispatcher and without its headers: through the table of C functions
// that the type of the tensors carries, DLPack's exchange API, which is the same for every build of torch since 2.10.
#pragma once

#include <Python.h>

namespace gradwire {

// Adds to the module:
//
//   read_with(api, type, watchers, is_grad_enabled, is_neg, profiler)
//       says whose tensors read() reads, and how: the capsule of the exchange API; the type of plain tensors; functions
//       without arguments of which one returns something true where somebody sees the operators that are called;
//       torch's own functions of these names; and the module torch.autograd.profiler.
//   dtype_code(tensor)
//       the bytes that stand for a tensor's dtype in a form.
//   read(form, *tensors)
//       the numbers of all tensors, one after the other; None where a call must go through the dispatcher: one of them
//       is not a plain tensor of the CPU, of the form that is asked for, or a gradient is asked of it, or somebody sees
//       the operators that are called.
//
// A form is bytes, for each tensor a letter and the codes of the dtypes it may have, with their number in front:
//
//   f   flat and contiguous: address, elements
//   s   contiguous, of any shape: the same
//   r   a field of the payloads of all ranks, contiguous rows: address, rows, elements of a row, bytes from row to row
//   F S R the same, or None: zeros
//
// Where there are several dtypes the place of the tensor's own among them follows.
//
// Returns whether that has worked; otherwise an exception is set.
bool define_tensors(PyObject* module);

}  // namespace gradwire
