// gradwire._kernels: the kernels as Python functions over addresses and sizes. The Python wrappers in gradwire/ops
// check what a tensor is; here only what would make the C++ code itself undefined.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <stdexcept>

#include "dispatch.h"
#include "places.h"
#include "ternary.h"
#include "threshold.h"
#include "topk.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gradwire;

namespace {

using Address = std::uintptr_t;
using Size = std::int64_t;

// From this size on, 8 MB, writing around the caches was measured faster than through them.
constexpr Size kPastCache = Size{1} << 21;

template <class T>
T* pointer(Address address, Size n) {
  if (n < 0) throw std::invalid_argument("a size must not be negative");
  if (n > 0 && address == 0) throw std::invalid_argument("an address must not be null where there are elements");
  return reinterpret_cast<T*>(address);
}

Rows rows(Address address, Size count, Size stride, Size n) {
  if (count < 0) throw std::invalid_argument("the number of payloads must not be negative");
  return {pointer<const std::uint8_t>(address, count > 0 ? n : 0), count, stride};
}

Feedback feedback(Address grad, Address residual, Address status, Size n) {
  return {pointer<float>(grad, n), pointer<float>(residual, n), reinterpret_cast<std::int32_t*>(status)};
}

void triad(Address a, Address b, Address c, double s, Size n, int threads) {
  const bool past_cache = n >= kPastCache && a % 64 == 0;
  run(&KernelTable::triad,
      {pointer<float>(a, n), pointer<const float>(b, n), pointer<const float>(c, n), float(s), past_cache}, n, 16,
      threads);
}

void nonfinite(Address x, Address status, Size n, int threads) {
  run(&KernelTable::nonfinite, {pointer<const float>(x, n), pointer<std::int32_t>(status, 1)}, n, 16, threads);
}

void swap_(Address a, Address b, Size n, int threads) {
  run(&KernelTable::swap, {pointer<float>(a, n), pointer<float>(b, n)}, n, 16, threads);
}

void accumulate(Address grad, Address residual, Address status, Size n, int threads) {
  run(&KernelTable::accumulate, feedback(grad, residual, status, n), n, 16, threads);
}

void cast_encode(Address x, Address out, double scale, bool bfloat, Size n, int threads) {
  run(&KernelTable::cast_encode, {pointer<const float>(x, n), pointer<std::uint8_t>(out, n), float(scale), bfloat}, n,
      16, threads);
}

void cast_add_decoded(Address payloads, Size count, Size stride, Address out, double scale, bool bfloat, Size n,
                      int threads) {
  run(&KernelTable::cast_add_decoded,
      {rows(payloads, count, stride, n), pointer<float>(out, n), float(scale), bfloat}, n, 16, threads);
}

void twobit_encode(Address x, Address codes, double threshold, Size n, int threads) {
  run(&KernelTable::twobit_encode,
      {pointer<const float>(x, n), pointer<std::uint8_t>(codes, n), float(threshold)}, n, 16, threads);
}

void twobit_encode_feedback(Address grad, Address residual, Address codes, double threshold, Address status, Size n,
                            int threads) {
  run(&KernelTable::twobit_encode_feedback,
      {feedback(grad, residual, status, n), pointer<std::uint8_t>(codes, n), float(threshold), float(threshold)}, n,
      16, threads);
}

// Strom's code is the 2-bit code with a strict comparison.
float beyond(double threshold) { return std::nextafter(float(threshold), INFINITY); }

void strom_encode(Address x, Address codes, double threshold, Size n, int threads) {
  run(&KernelTable::twobit_encode,
      {pointer<const float>(x, n), pointer<std::uint8_t>(codes, n), beyond(threshold)}, n, 16, threads);
}

void strom_encode_feedback(Address grad, Address residual, Address codes, double threshold, Address status, Size n,
                           int threads) {
  run(&KernelTable::twobit_encode_feedback,
      {feedback(grad, residual, status, n), pointer<std::uint8_t>(codes, n), beyond(threshold), float(threshold)}, n,
      16, threads);
}

void ternary_encode_(Address codes, Address used, Address stream, bool words, Size n) {
  ternary_encode({pointer<const std::uint8_t>(codes, n), pointer<std::int32_t>(used, 1),
                  pointer<std::uint8_t>(stream, 1), words},
                 n);
}

void ternary_add_decoded_(Address streams, Size count, Size stride, Size length, Address out, double threshold,
                          double scale, Size n, int threads) {
  if (length < 0) throw std::invalid_argument("a length must not be negative");
  ternary_add_decoded({rows(streams, count, stride, length), length, pointer<float>(out, n),
                       float(scale) * float(threshold)},
                      n, threads);
}

void twobit_add_decoded(Address codes, Size count, Size stride, Address out, double threshold, double scale, Size n,
                        int threads) {
  run(&KernelTable::twobit_add_decoded,
      {rows(codes, count, stride, n), pointer<float>(out, n), float(scale) * float(threshold)}, n, 16, threads);
}

void onebit_encode(Address x, Address codes, double threshold, Size n, int threads) {
  run(&KernelTable::onebit_encode,
      {pointer<const float>(x, n), pointer<std::uint8_t>(codes, n), float(threshold)}, n, 32, threads);
}

void onebit_encode_feedback(Address grad, Address residual, Address codes, double threshold, Address status, Size n,
                            int threads) {
  run(&KernelTable::onebit_encode_feedback,
      {feedback(grad, residual, status, n), pointer<std::uint8_t>(codes, n), float(threshold)}, n, 32, threads);
}

void onebit_add_decoded(Address codes, Size count, Size stride, Address out, double scale, Size n, int threads) {
  run(&KernelTable::onebit_add_decoded, {rows(codes, count, stride, n), pointer<float>(out, n), float(scale)}, n, 32,
      threads);
}

void philox(Address out, Size key, Size step, Size offset, Size n, int threads) {
  run(&KernelTable::philox,
      {pointer<std::uint32_t>(out, n), std::uint64_t(key), std::uint64_t(step), std::uint64_t(offset)}, n, 128,
      threads);
}

void check_qsgd(int bits, Size block) {
  if (bits < 2 || bits > 8) throw std::invalid_argument("bits must be from 2 to 8");
  if (block < 16 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
}

Qsgd qsgd(Address norms, Address codes, int bits, Size block, bool l2, Size key, Size step, Size n) {
  check_qsgd(bits, block);
  return {pointer<float>(norms, n), pointer<std::uint8_t>(codes, n), bits, block, l2, std::uint64_t(key),
          std::uint64_t(step)};
}

void qsgd_encode(Address x, Address norms, Address codes, int bits, Size block, bool l2, Size key, Size step, Size n,
                 int threads) {
  run(&KernelTable::qsgd_encode, {qsgd(norms, codes, bits, block, l2, key, step, n), pointer<const float>(x, n)}, n,
      block, threads);
}

void qsgd_encode_feedback(Address grad, Address residual, Address norms, Address codes, int bits, Size block, bool l2,
                          Size key, Size step, Address status, Size n, int threads) {
  run(&KernelTable::qsgd_encode_feedback,
      {feedback(grad, residual, status, n), qsgd(norms, codes, bits, block, l2, key, step, n)}, n, block, threads);
}

void qsgd_add_decoded(Address norms, Size norms_stride, Address codes, Size codes_stride, Size count, Address out,
                      int bits, Size block, double scale, Size n, int threads) {
  check_qsgd(bits, block);
  run(&KernelTable::qsgd_add_decoded,
      {rows(norms, count, norms_stride, n), rows(codes, count, codes_stride, n), pointer<float>(out, n), bits, block,
       float(scale)},
      n, block, threads);
}

void threshold_encode_(Address x, Address used, Address stream, double threshold, Size n, int threads) {
  threshold_encode({{nullptr, nullptr, nullptr}, pointer<const float>(x, n), float(threshold),
                    pointer<std::int32_t>(used, 1), pointer<std::uint8_t>(stream, 8)},
                   n, threads);
}

void threshold_encode_feedback(Address grad, Address residual, Address used, Address stream, double threshold,
                               Address status, Size n, int threads) {
  threshold_encode({feedback(grad, residual, status, n), pointer<const float>(residual, n), float(threshold),
                    pointer<std::int32_t>(used, 1), pointer<std::uint8_t>(stream, 8)},
                   n, threads);
}

void threshold_add_decoded_(Address streams, Size count, Size stride, Size length, Address out, double scale, Size n,
                            int threads) {
  if (length < 0) throw std::invalid_argument("a length must not be negative");
  threshold_add_decoded({rows(streams, count, stride, length), length, pointer<float>(out, n), float(scale)}, n,
                        threads);
}

Places places(Address indices, Address counts, Size k, Size n) {
  if (k < 0 || k > n) throw std::invalid_argument("k must be from 0 to n");
  return {pointer<std::uint16_t>(indices, k), pointer<std::int32_t>(counts, n), k, n};
}

template <auto Function, class Byte>
void convert_places(Address indices, Address counts, Address stream, Size k, Size n) {
  Function(places(indices, counts, k, n), pointer<Byte>(stream, k));
}

Choice choice(Size seed, Size k, Size run, Size n) {
  if (run < 1 || k < 0 || k > (n + run - 1) / run) throw std::invalid_argument("there are not as many units");
  return {std::uint32_t(seed), k, run, n};
}

void randomk_encode_(Address x, Address values, Size seed, Size k, Size run, bool scaled, double scale, Size n) {
  randomk_encode({choice(seed, k, run, n), pointer<const float>(x, n), pointer<float>(values, k), float(scale), scaled});
}

void randomk_add_decoded_(Address values, Address out, Size seed, Size k, Size run, double scale, Size n) {
  randomk_add_decoded(
      {choice(seed, k, run, n), pointer<const std::uint8_t>(values, k), pointer<float>(out, n), float(scale)});
}

void check_k(Size k, Size n) {
  if (k < 0 || k > n) throw std::invalid_argument("k must be from 0 to n");
}

void topk_encode(Address x, Address values, Address indices, Address counts, Size k, Size n, int threads) {
  check_k(k, n);
  topk({{nullptr, nullptr, nullptr},
        pointer<const float>(x, n),
        pointer<float>(values, k),
        pointer<std::uint16_t>(indices, k),
        pointer<std::int32_t>(counts, n),
        k,
        n},
       threads);
}

void topk_encode_feedback(Address grad, Address residual, Address values, Address indices, Address counts,
                          Address status, Size k, Size n, int threads) {
  check_k(k, n);
  topk({feedback(grad, residual, status, n), pointer<const float>(residual, n), pointer<float>(values, k),
        pointer<std::uint16_t>(indices, k), pointer<std::int32_t>(counts, n), k, n},
       threads);
}

void sparse_add_decoded(Address values, Size values_stride, Address indices, Size indices_stride, Address counts,
                        Size counts_stride, Size ranks, Size k, Address out, double scale, Size n, int threads) {
  run(&KernelTable::sparse_add_decoded,
      {rows(values, ranks, values_stride, k), rows(indices, ranks, indices_stride, k),
       rows(counts, ranks, counts_stride, n), k, pointer<float>(out, n), n, float(scale)},
      n, 65536, threads);
}

}  // namespace

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

  const auto kernel = [&m](const char* name, auto function, const auto&... arguments) {
    m.def(name, function, arguments..., "n"_a, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
  };
  kernel("triad", &triad, "a"_a, "b"_a, "c"_a, "s"_a);
  kernel("nonfinite", &nonfinite, "x"_a, "status"_a);
  kernel("swap", &swap_, "a"_a, "b"_a);
  kernel("accumulate", &accumulate, "grad"_a, "residual"_a, "status"_a);
  kernel("cast_encode", &cast_encode, "x"_a, "out"_a, "scale"_a, "bfloat"_a);
  kernel("cast_add_decoded", &cast_add_decoded, "payloads"_a, "count"_a, "stride"_a, "out"_a, "scale"_a, "bfloat"_a);
  kernel("twobit_encode", &twobit_encode, "x"_a, "codes"_a, "threshold"_a);
  kernel("twobit_encode_feedback", &twobit_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "threshold"_a,
         "status"_a);
  kernel("twobit_add_decoded", &twobit_add_decoded, "codes"_a, "count"_a, "stride"_a, "out"_a, "threshold"_a,
         "scale"_a);
  kernel("strom_encode", &strom_encode, "x"_a, "codes"_a, "threshold"_a);
  kernel("strom_encode_feedback", &strom_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "threshold"_a,
         "status"_a);
  m.def("ternary_encode", &ternary_encode_, "codes"_a, "used"_a, "stream"_a, "words"_a, "n"_a,
        nb::call_guard<nb::gil_scoped_release>());
  kernel("ternary_add_decoded", &ternary_add_decoded_, "streams"_a, "count"_a, "stride"_a, "length"_a, "out"_a,
         "threshold"_a, "scale"_a);
  const auto serial = [&m](const char* name, auto function, const auto&... arguments) {
    m.def(name, function, arguments..., "n"_a, nb::call_guard<nb::gil_scoped_release>());
  };
  serial("rice_encode", &convert_places<rice_encode, std::uint8_t>, "indices"_a, "counts"_a, "stream"_a, "k"_a);
  serial("rice_decode", &convert_places<rice_decode, const std::uint8_t>, "indices"_a, "counts"_a, "stream"_a, "k"_a);
  serial("bitmap_encode", &convert_places<bitmap_encode, std::uint8_t>, "indices"_a, "counts"_a, "bitmap"_a, "k"_a);
  serial("bitmap_decode", &convert_places<bitmap_decode, const std::uint8_t>, "indices"_a, "counts"_a, "bitmap"_a,
         "k"_a);
  serial("randomk_encode", &randomk_encode_, "x"_a, "values"_a, "seed"_a, "k"_a, "run"_a, "scaled"_a, "scale"_a);
  serial("randomk_add_decoded", &randomk_add_decoded_, "values"_a, "out"_a, "seed"_a, "k"_a, "run"_a, "scale"_a);
  kernel("threshold_encode", &threshold_encode_, "x"_a, "used"_a, "stream"_a, "threshold"_a);
  kernel("threshold_encode_feedback", &threshold_encode_feedback, "grad"_a, "residual"_a, "used"_a, "stream"_a,
         "threshold"_a, "status"_a);
  kernel("threshold_add_decoded", &threshold_add_decoded_, "streams"_a, "count"_a, "stride"_a, "length"_a, "out"_a,
         "scale"_a);
  kernel("onebit_encode", &onebit_encode, "x"_a, "codes"_a, "threshold"_a);
  kernel("onebit_encode_feedback", &onebit_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "threshold"_a,
         "status"_a);
  kernel("onebit_add_decoded", &onebit_add_decoded, "codes"_a, "count"_a, "stride"_a, "out"_a, "scale"_a);
  kernel("philox", &philox, "out"_a, "key"_a, "step"_a, "offset"_a);
  kernel("qsgd_encode", &qsgd_encode, "x"_a, "norms"_a, "codes"_a, "bits"_a, "block"_a, "l2"_a, "key"_a, "step"_a);
  kernel("qsgd_encode_feedback", &qsgd_encode_feedback, "grad"_a, "residual"_a, "norms"_a, "codes"_a, "bits"_a,
         "block"_a, "l2"_a, "key"_a, "step"_a, "status"_a);
  kernel("qsgd_add_decoded", &qsgd_add_decoded, "norms"_a, "norms_stride"_a, "codes"_a, "codes_stride"_a, "count"_a,
         "out"_a, "bits"_a, "block"_a, "scale"_a);
  kernel("topk_encode", &topk_encode, "x"_a, "values"_a, "indices"_a, "counts"_a, "k"_a);
  kernel("topk_encode_feedback", &topk_encode_feedback, "grad"_a, "residual"_a, "values"_a, "indices"_a, "counts"_a,
         "status"_a, "k"_a);
  kernel("sparse_add_decoded", &sparse_add_decoded, "values"_a, "values_stride"_a, "indices"_a, "indices_stride"_a,
         "counts"_a, "counts_stride"_a, "ranks"_a, "k"_a, "out"_a, "scale"_a);
}
