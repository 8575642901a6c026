#include "tensors.h"

#include <array>
#include <cstdint>

namespace gradwire {

namespace {

// As dlpack.h of DLPack 1.3 declares them.
struct Described {
  std::uint8_t* data;
  std::int32_t device_type, device_number;
  std::int32_t dimensions;
  std::uint8_t type_code, type_bits;
  std::uint16_t type_lanes;
  const std::int64_t* shape;
  const std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  int (*describe)(void* object, Described* out);  // borrows; -1 and an exception where there is nothing to describe
  void* current_work_stream;
};

constexpr std::uint32_t kMajor = 1;
constexpr std::int32_t kCpu = 1;
constexpr std::uint8_t kFloat = 2, kBfloat = 4;

constexpr std::size_t kMostNumbers = 64;

// What read_with() was told; the references are kept for ever, as the module is.
struct {
  const ExchangeApi* api = nullptr;
  PyTypeObject* type = nullptr;
  PyObject* watchers = nullptr;
  PyObject* is_grad_enabled = nullptr;
  PyObject* is_neg = nullptr;
  PyObject* profiler = nullptr;
  PyObject* requires_grad = nullptr;
  PyObject* is_profiler_enabled = nullptr;
  PyObject* is_meta = nullptr;
} torch;

// Whether a tensor without memory was ever given. Torch raises for each of them, and collects a trace of the stack, in
// the better part of a millisecond; so a process that has had one asks first.
bool had_meta = false;

// Whether what a call returned is true; also after an exception, which is left to the dispatcher.
bool is_true(PyObject* returned) {
  if (returned == nullptr) return PyErr_Clear(), true;
  const bool found = returned == Py_True || (returned != Py_False && returned != Py_None && PyObject_IsTrue(returned));
  Py_DECREF(returned);
  return found;
}

bool is_watched() {
  const Py_ssize_t count = PyTuple_GET_SIZE(torch.watchers);
  for (Py_ssize_t i = 0; i < count; ++i)
    if (is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(torch.watchers, i)))) return true;
  // A profiler of all threads shows on its own thread alone, so the flag of the process is read, too.
  return is_true(PyObject_GetAttr(torch.profiler, torch.is_profiler_enabled));
}

// The place of the tensor's dtype among `count` codes, or -1.
int place_of(const Described& tensor, const std::uint8_t* codes, int count) {
  for (int i = 0; i < count; ++i)
    if (codes[2 * i] == tensor.type_code && codes[2 * i + 1] == tensor.type_bits) return i;
  return -1;
}

std::int64_t elements_of(const Described& tensor) {
  std::int64_t product = 1;
  for (int i = 0; i < tensor.dimensions; ++i) product *= tensor.shape[i];
  return product;
}

bool is_contiguous(const Described& tensor) {
  std::int64_t step = 1;
  for (int i = tensor.dimensions - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != step) return elements_of(tensor) == 0;
    step *= tensor.shape[i];
  }
  return true;
}

// The numbers of one call, in the order in which it gets them.
struct Numbers {
  std::array<std::int64_t, kMostNumbers> value;
  std::size_t count = 0;

  void add(std::int64_t number) { value[count++] = number; }
};

bool describe(PyObject* object, bool asks_gradient, Described& out) {
  if (Py_TYPE(object) != torch.type) return false;
  if (had_meta && is_true(PyObject_GetAttr(object, torch.is_meta))) return false;
  if (torch.api->describe(object, &out) != 0) return PyErr_Clear(), had_meta = true, false;
  if (out.device_type != kCpu || out.type_lanes != 1) return false;
  const bool is_float = out.type_code == kFloat || out.type_code == kBfloat;
  if (asks_gradient && is_float && is_true(PyObject_GetAttr(object, torch.requires_grad))) return false;
  // A view of what was the imaginary part of a conjugate has the memory of its opposite; the dispatcher makes the values
  // first. Torch makes no such views of other types.
  return out.type_code != kFloat || !is_true(PyObject_CallOneArg(torch.is_neg, object));
}

// Reads the tensor that `form` begins with, and moves it on.
bool read_tensor(PyObject* object, bool asks_gradient, const std::uint8_t*& form, Numbers& numbers) {
  const char given = char(form[0]);
  const bool optional = given < 'a';
  const char letter = optional ? char(given + 'a' - 'A') : given;
  const int count = form[1];
  const std::uint8_t* const codes = form + 2;
  form = codes + 2 * count;
  const bool rows = letter == 'r';
  if (object == Py_None) {
    for (int i = 0; i < (rows ? 4 : 2) + (count > 1); ++i) numbers.add(0);
    return optional;
  }
  Described x;
  if (!describe(object, asks_gradient, x)) return false;
  const int place = place_of(x, codes, count);
  if (place < 0) return false;
  const auto address = x.data == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(x.data + x.byte_offset);
  numbers.add(std::int64_t(address));
  if (rows) {
    if (x.dimensions != 2 || (x.shape[1] > 1 && x.strides[1] != 1)) return false;
    numbers.add(x.shape[0]), numbers.add(x.shape[1]), numbers.add(x.strides[0] * (x.type_bits / 8));
  } else {
    if ((letter == 'f' && x.dimensions != 1) || !is_contiguous(x)) return false;
    numbers.add(elements_of(x));
  }
  if (count > 1) numbers.add(place);
  return true;
}

PyObject* read(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (torch.api == nullptr || count < 1 || !PyBytes_Check(given[0])) {
    PyErr_SetString(PyExc_TypeError, "read() takes a form and tensors, after read_with()");
    return nullptr;
  }
  if (count > 1 && Py_TYPE(given[1]) != torch.type) Py_RETURN_NONE;  // many pieces, as a rule
  if (is_watched()) Py_RETURN_NONE;
  const bool asks_gradient = is_true(PyObject_CallNoArgs(torch.is_grad_enabled));
  const auto* form = reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(given[0]));
  const auto* const end = form + PyBytes_GET_SIZE(given[0]);
  Numbers numbers;
  for (Py_ssize_t i = 1; i < count; ++i) {
    // Of a tensor there are five numbers at the most.
    if (end - form < 2 || end - form < 2 + 2 * form[1] || numbers.count + 5 > kMostNumbers) {
      PyErr_SetString(PyExc_TypeError, "read(): more tensors than the form, or than a call, has room for");
      return nullptr;
    }
    if (!read_tensor(given[i], asks_gradient, form, numbers)) Py_RETURN_NONE;
  }
  PyObject* const all = PyTuple_New(Py_ssize_t(numbers.count));
  if (all == nullptr) return nullptr;
  for (std::size_t i = 0; i < numbers.count; ++i) {
    PyObject* const number = PyLong_FromLongLong(numbers.value[i]);
    if (number == nullptr) return Py_DECREF(all), nullptr;
    PyTuple_SET_ITEM(all, Py_ssize_t(i), number);
  }
  return all;
}

PyObject* read_with(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 6 || !PyType_Check(given[1]) || !PyTuple_Check(given[2])) {
    PyErr_SetString(PyExc_TypeError, "read_with() takes a capsule, a type, a tuple of functions, two functions, a module");
    return nullptr;
  }
  const auto* found = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(given[0], "dlpack_exchange_api"));
  if (found == nullptr) return nullptr;
  while (found != nullptr && found->major != kMajor) found = found->previous;
  if (found == nullptr || found->describe == nullptr) {
    PyErr_SetString(PyExc_ValueError, "an unknown version of DLPack");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < count; ++i) Py_INCREF(given[i]);
  torch = {found,
           reinterpret_cast<PyTypeObject*>(given[1]),
           given[2],
           given[3],
           given[4],
           given[5],
           PyUnicode_InternFromString("requires_grad"),
           PyUnicode_InternFromString("_is_profiler_enabled"),
           PyUnicode_InternFromString("is_meta")};
  Py_RETURN_NONE;
}

PyObject* dtype_code(PyObject*, PyObject* tensor) {
  Described x;
  if (torch.api == nullptr) {
    PyErr_SetString(PyExc_TypeError, "dtype_code() takes a tensor, after read_with()");
    return nullptr;
  }
  if (torch.api->describe(tensor, &x) != 0) return nullptr;
  const char code[] = {char(x.type_code), char(x.type_bits)};
  return PyBytes_FromStringAndSize(code, sizeof code);
}

using Fast = PyObject*(PyObject*, PyObject* const*, Py_ssize_t);

PyCFunction plain(Fast* function) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)); }

PyMethodDef methods[] = {
    {"read_with", plain(&read_with), METH_FASTCALL, "Says whose tensors read() reads, and how."},
    {"dtype_code", dtype_code, METH_O, "The bytes that stand for a tensor's dtype."},
    {"read", plain(&read), METH_FASTCALL,
     "The numbers of tensors; None where a call must go through torch's dispatcher."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool define_tensors(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace gradwire
