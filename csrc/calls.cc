#include "calls.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "operation.h"

namespace gradwire {

PyObject* raise_caught() {
  try {
    throw;
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::logic_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an unknown C++ exception");
  }
  return nullptr;
}

namespace operations {

void* address_of(const Value* from, Size n) {
  if (n > 0 && from->address == 0)
    throw std::invalid_argument("an address must not be null where there are elements");
  return reinterpret_cast<void*>(from->address);
}

namespace {

// Of one call.
constexpr std::size_t kMostValues = 64;

void check_size(Size n) {
  if (n < 0) throw std::invalid_argument("a size must not be negative");
}

// The number of elements.
Size size_of(const Operation& op, const Value* given) { return given[op.count - 1 - op.shares].size; }

void run_once(const Operation& op, const Value* given) {
  const Size n = size_of(op, given);
  check_size(n);
  op.call(op.function, given, n);
}

// What a row of a table adds to what is given to all of its rows: an offset to an address, a value of its own to 0.
Value added(Kind kind, Value given, Size own) {
  switch (kind) {
    case Kind::kAddress:
      given.address += std::uintptr_t(own);
      break;
    case Kind::kSize:
      given.size += own;
      break;
    case Kind::kInt:
      given.number += int(own);
      break;
    case Kind::kBool:
      given.flag = given.flag || own != 0;
      break;
    case Kind::kDouble: {
      double value;
      std::memcpy(&value, &own, sizeof value);
      if (own != 0) given.real += value;
      break;
    }
    case Kind::kList:
      break;
  }
  return given;
}

// The same operation on many pieces in one call. A row of the table has a number for each of the arguments but the
// threads. A large piece is worked on by all threads; the others are handed out, so that they cost no region each.
void run_each(const Operation& op, const Size* table, Size rows, int threads, const Value* given) {
  const std::size_t columns = op.count - op.shares;
  const auto each = [&](Size row, int helpers) {
    const Size* const own = table + row * Size(columns);
    Value all[kMostValues];
    for (std::size_t i = 0; i < columns; ++i) all[i] = added(op.kinds[i], given[i], own[i]);
    if (op.shares) all[columns].number = helpers;
    run_once(op, all);
  };
  const auto elements = [&](Size row) { return table[row * Size(columns) + Size(columns) - 1]; };
  std::vector<Size> small;
  Size sum = 0;
  for (Size row = 0; row < rows; ++row) {
    if (op.shares && threads > 1 && elements(row) >= kAlone) {
      each(row, threads);
    } else {
      small.push_back(row), sum += elements(row);
    }
  }
  parallel_each(Size(small.size()), sum, threads, [&](Size i) { each(small[std::size_t(i)], 1); });
}

// Reading what Python gives. Each returns false where it is something else; an exception may be set then.

// Python's functions for long long copy a number of two digits, as addresses are, byte by byte; those for long do not.
static_assert(sizeof(long) == sizeof(Size) && sizeof(long) == sizeof(std::uintptr_t));

bool read_integer(PyObject* given, Size& value) {
  if (PyLong_Check(given)) {
    value = PyLong_AsLong(given);
  } else {
    PyObject* const number = PyNumber_Index(given);
    if (number == nullptr) return false;
    value = PyLong_AsLong(number);
    Py_DECREF(number);
  }
  return value != -1 || PyErr_Occurred() == nullptr;
}

bool read_address(PyObject* given, std::uintptr_t& value) {
  if (!PyLong_Check(given)) return false;
  value = PyLong_AsUnsignedLong(given);
  return value != std::uintptr_t(-1) || PyErr_Occurred() == nullptr;
}

bool read_double(PyObject* given, double& value) {
  value = PyFloat_CheckExact(given) ? PyFloat_AS_DOUBLE(given) : PyFloat_AsDouble(given);
  return value != -1.0 || PyErr_Occurred() == nullptr;
}

// They live as long as the call.
using Lists = std::vector<std::unique_ptr<std::vector<Size>>>;

bool read_list(PyObject* given, Value& value, Lists& lists) {
  if (!PyList_Check(given) && !PyTuple_Check(given)) return false;
  std::vector<Size>& list = *lists.emplace_back(new std::vector<Size>);
  PyObject* const* const items = PySequence_Fast_ITEMS(given);
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
  list.reserve(std::size_t(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    Size number;
    if (!PyLong_Check(items[i]) || !read_integer(items[i], number)) return false;
    list.push_back(number);
  }
  value.list = &list;
  return true;
}

bool read_value(Kind kind, PyObject* given, Value& value, Lists& lists) {
  Size number = 0;
  switch (kind) {
    case Kind::kAddress:
      return read_address(given, value.address);
    case Kind::kSize:
      return read_integer(given, value.size);
    case Kind::kInt:
      if (!read_integer(given, number) || number < INT_MIN || number > INT_MAX) return false;
      value.number = int(number);
      return true;
    case Kind::kBool:
      value.flag = given == Py_True;
      return given == Py_True || given == Py_False;
    case Kind::kDouble:
      return read_double(given, value.real);
    case Kind::kList:
      return read_list(given, value, lists);
  }
  return false;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAddress:
      return "an address";
    case Kind::kSize:
      return "an integer of 64 bits";
    case Kind::kInt:
      return "an integer of 32 bits";
    case Kind::kBool:
      return "a bool";
    case Kind::kDouble:
      return "a float";
    case Kind::kList:
      return "a list of integers";
  }
  return "";
}

// The number `at` of what is given, which is of this kind. Sets an exception where it is not.
bool take(const Operation& op, std::size_t at, Kind kind, PyObject* given, Value& value, Lists& lists) {
  try {
    if (read_value(kind, given, value, lists)) return true;
  } catch (...) {
    return raise_caught() != nullptr;
  }
  // What an argument's own method raises is told as it is: an interrupt, or that memory is short.
  if (PyErr_Occurred() != nullptr && !PyErr_ExceptionMatches(PyExc_TypeError) &&
      !PyErr_ExceptionMatches(PyExc_OverflowError))
    return false;
  PyErr_Clear();
  PyErr_Format(PyExc_TypeError, "%s: argument %zu must be %s, got %R", op.name, at + 1, name_of(kind), given);
  return false;
}

bool has_count(const Operation& op, const char* form, Py_ssize_t count, std::size_t expected) {
  if (count == Py_ssize_t(expected)) return true;
  PyErr_Format(PyExc_TypeError, "%s%s takes %zu arguments, got %zd", op.name, form, expected, count);
  return false;
}

const Operation& operation_of(PyObject* self) {
  return *static_cast<const Operation*>(PyCapsule_GetPointer(self, nullptr));
}

// Other threads of Python run while f does. Where the interpreter has ended meanwhile, Python 3.13 and older end this
// thread in PyEval_RestoreThread(), by unwinding its stack: neither a destructor nor a catch (...) may be around it.
template <class F>
PyObject* run_released(const F& f) {
  std::exception_ptr thrown;
  PyThreadState* const state = PyEval_SaveThread();
  try {
    f();
  } catch (...) {
    thrown = std::current_exception();
  }
  PyEval_RestoreThread(state);
  if (thrown == nullptr) Py_RETURN_NONE;
  try {
    std::rethrow_exception(thrown);
  } catch (...) {
    return raise_caught();
  }
}

PyObject* call(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  const Operation& op = operation_of(self);
  if (!has_count(op, "", count, op.count)) return nullptr;
  Value values[kMostValues];
  Lists lists;
  for (std::size_t i = 0; i < op.count; ++i)
    if (!take(op, i, op.kinds[i], given[i], values[i], lists)) return nullptr;
  return run_released([&] { run_once(op, values); });
}

// Given are the address of the table, its rows, the threads, and what is given to all rows.
PyObject* call_each(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  constexpr Kind kFirst[] = {Kind::kAddress, Kind::kSize, Kind::kInt};
  const Operation& op = operation_of(self);
  if (!has_count(op, "_each", count, op.count + 3)) return nullptr;
  Value first[3], values[kMostValues];
  Lists lists;
  for (std::size_t i = 0; i < 3; ++i)
    if (!take(op, i, kFirst[i], given[i], first[i], lists)) return nullptr;
  for (std::size_t i = 0; i < op.count; ++i)
    if (!take(op, i + 3, op.kinds[i], given[i + 3], values[i], lists)) return nullptr;
  return run_released([&] {
    run_each(op, reinterpret_cast<const Size*>(first[0].address), first[1].size, first[2].number, values);
  });
}

// Whether a table can say all that an operation is given.
bool in_a_table(const Operation& op) {
  return std::find(op.kinds, op.kinds + op.count, Kind::kList) == op.kinds + op.count;
}

using Fast = PyObject*(PyObject*, PyObject* const*, Py_ssize_t);

bool define(PyObject* module, const Operation& op, const std::string& name, Fast* function) {
  // Python keeps the addresses of these for as long as the function lives.
  static auto& names = *new std::deque<std::string>;
  static auto& methods = *new std::deque<PyMethodDef>;
  const char* const kept = names.emplace_back(name).c_str();
  auto* const plain = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
  PyMethodDef& method = methods.emplace_back(PyMethodDef{kept, plain, METH_FASTCALL, nullptr});
  PyObject* const self = PyCapsule_New(const_cast<Operation*>(&op), nullptr, nullptr);
  PyObject* const made = self == nullptr ? nullptr : PyCFunction_NewEx(&method, self, nullptr);
  const int failed = made == nullptr ? -1 : PyModule_AddObjectRef(module, kept, made);
  Py_XDECREF(self), Py_XDECREF(made);
  return failed == 0;
}

}  // namespace

}  // namespace operations

bool define_operations(PyObject* module) {
  using namespace operations;
  for (const Operation* op = Operation::first; op != nullptr; op = op->next) {
    if (op->count > kMostValues) {
      PyErr_Format(PyExc_SystemError, "%s takes too many arguments", op->name);
      return false;
    }
    if (!define(module, *op, op->name, &call)) return false;
    if (in_a_table(*op) && !define(module, *op, std::string(op->name) + "_each", &call_each)) return false;
  }
  return true;
}

}  // namespace gradwire
