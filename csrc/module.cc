// gradwire._kernels: the kernels as Python functions over addresses and sizes. The Python wrappers in gradwire/ops
// check what a tensor is; here only what would make the C++ code itself undefined.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>

#include "dispatch.h"
#include "inceptionn.h"
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
      {feedback(grad, residual, status, n), pointer<std::uint8_t>(codes, n), float(threshold)}, n, 16, threads);
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

Codebook codebook(int kind, Size block) {
  if (kind < 0 || kind > int(Codebook::e5m2)) throw std::invalid_argument("kind must be from 0 to 3");
  if (block < 0 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
  return Codebook(kind);
}

Eightbit eightbit(Address scales, Address codes, Address book, int kind, Size block, Size n) {
  const Codebook known = codebook(kind, block);
  return {pointer<float>(scales, n), pointer<std::uint8_t>(codes, n), pointer<const float>(book, n), known, block};
}

// The one scale of a whole tensor: the largest magnitude, or 0 where it is too small for its inverse.
template <class Args>
void measure_all(void (*KernelTable::*kernel)(const Args&, std::int64_t, std::int64_t), Args args, float* scale,
                 Size n, int threads) {
  if (n == 0) return;
  std::uint32_t word = 0;
  args.out = &word;
  run(kernel, args, n, 16, threads);
  std::memcpy(scale, &word, sizeof word);
  if (*scale < 0x1p-120f) *scale = 0.0f;
}

void eightbit_encode(Address x, Address scales, Address codes, Address book, int kind, Size block, Size n,
                     int threads) {
  const EightbitEncode args = {eightbit(scales, codes, book, kind, block, n), pointer<const float>(x, n)};
  if (block == 0) measure_all(&KernelTable::largest, Largest{args.x, nullptr}, args.scales, n, threads);
  run(&KernelTable::eightbit_encode, args, n, block ? block : 16, threads);
}

void eightbit_encode_feedback(Address grad, Address residual, Address scales, Address codes, Address book, int kind,
                              Size block, Address status, Size n, int threads) {
  const EightbitEncodeFeedback args = {feedback(grad, residual, status, n),
                                       eightbit(scales, codes, book, kind, block, n)};
  if (block == 0)
    measure_all(&KernelTable::largest_sum, LargestSum{args.grad, args.residual, nullptr}, args.scales, n, threads);
  run(&KernelTable::eightbit_encode_feedback, args, n, block ? block : 16, threads);
}

void eightbit_add_decoded(Address scales, Size scales_stride, Address codes, Size codes_stride, Size count, Address out,
                          Address book, int kind, Size block, double scale, Size n, int threads) {
  run(&KernelTable::eightbit_add_decoded,
      {rows(scales, count, scales_stride, n), rows(codes, count, codes_stride, n), pointer<float>(out, n),
       pointer<const float>(book, n), codebook(kind, block), block, float(scale)},
      n, block ? block : 16, threads);
}

void check_natural(Size block) {
  if (block < 16 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
}

Natural natural(Address bases, Address codes, bool random, Size block, Size key, Size step, Size n) {
  check_natural(block);
  return {pointer<std::uint8_t>(bases, n), pointer<std::uint8_t>(codes, n), random, block, std::uint64_t(key),
          std::uint64_t(step)};
}

void natural_encode(Address x, Address bases, Address codes, bool random, Size block, Size key, Size step, Size n,
                    int threads) {
  run(&KernelTable::natural_encode,
      {natural(bases, codes, random, block, key, step, n), pointer<const float>(x, n)}, n, block, threads);
}

void natural_encode_feedback(Address grad, Address residual, Address bases, Address codes, bool random, Size block,
                             Size key, Size step, Address status, Size n, int threads) {
  run(&KernelTable::natural_encode_feedback,
      {feedback(grad, residual, status, n), natural(bases, codes, random, block, key, step, n)}, n, block, threads);
}

void natural_add_decoded(Address bases, Size bases_stride, Address codes, Size codes_stride, Size count, Address out,
                         Size block, double scale, Size n, int threads) {
  check_natural(block);
  run(&KernelTable::natural_add_decoded,
      {rows(bases, count, bases_stride, n), rows(codes, count, codes_stride, n), pointer<float>(out, n), block,
       float(scale)},
      n, block, threads);
}

void check_bound(int bound) {
  if (bound < 1 || bound > 15) throw std::invalid_argument("bound must be from 1 to 15");
}

void inceptionn_encode_(Address x, Address used, Address stream, int bound, Size n, int threads) {
  check_bound(bound);
  inceptionn_encode(
      {pointer<const float>(x, n), pointer<std::int32_t>(used, 1), pointer<std::uint8_t>(stream, n), bound, n},
      threads);
}

void inceptionn_add_decoded_(Address stream, Size bytes, Address out, int bound, double scale, Size n, int threads) {
  check_bound(bound);
  inceptionn_add_decoded(
      {pointer<const std::uint8_t>(stream, bytes), bytes, pointer<float>(out, n), bound, float(scale), n}, threads);
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
  kernel("cast_encode", &cast_encode, "x"_a, "out"_a, "scale"_a, "bfloat"_a);
  kernel("cast_add_decoded", &cast_add_decoded, "payloads"_a, "count"_a, "stride"_a, "out"_a, "scale"_a, "bfloat"_a);
  kernel("twobit_encode", &twobit_encode, "x"_a, "codes"_a, "threshold"_a);
  kernel("twobit_encode_feedback", &twobit_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "threshold"_a,
         "status"_a);
  kernel("twobit_add_decoded", &twobit_add_decoded, "codes"_a, "count"_a, "stride"_a, "out"_a, "threshold"_a,
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
  kernel("eightbit_encode", &eightbit_encode, "x"_a, "scales"_a, "codes"_a, "book"_a, "kind"_a, "block"_a);
  kernel("eightbit_encode_feedback", &eightbit_encode_feedback, "grad"_a, "residual"_a, "scales"_a, "codes"_a, "book"_a,
         "kind"_a, "block"_a, "status"_a);
  kernel("eightbit_add_decoded", &eightbit_add_decoded, "scales"_a, "scales_stride"_a, "codes"_a, "codes_stride"_a,
         "count"_a, "out"_a, "book"_a, "kind"_a, "block"_a, "scale"_a);
  kernel("inceptionn_encode", &inceptionn_encode_, "x"_a, "used"_a, "stream"_a, "bound"_a);
  kernel("inceptionn_add_decoded", &inceptionn_add_decoded_, "stream"_a, "bytes"_a, "out"_a, "bound"_a, "scale"_a);
  kernel("natural_encode", &natural_encode, "x"_a, "bases"_a, "codes"_a, "random"_a, "block"_a, "key"_a, "step"_a);
  kernel("natural_encode_feedback", &natural_encode_feedback, "grad"_a, "residual"_a, "bases"_a, "codes"_a, "random"_a,
         "block"_a, "key"_a, "step"_a, "status"_a);
  kernel("natural_add_decoded", &natural_add_decoded, "bases"_a, "bases_stride"_a, "codes"_a, "codes_stride"_a,
         "count"_a, "out"_a, "block"_a, "scale"_a);
  kernel("topk_encode", &topk_encode, "x"_a, "values"_a, "indices"_a, "counts"_a, "k"_a);
  kernel("topk_encode_feedback", &topk_encode_feedback, "grad"_a, "residual"_a, "values"_a, "indices"_a, "counts"_a,
         "status"_a, "k"_a);
  kernel("sparse_add_decoded", &sparse_add_decoded, "values"_a, "values_stride"_a, "indices"_a, "indices_stride"_a,
         "counts"_a, "counts_stride"_a, "ranks"_a, "k"_a, "out"_a, "scale"_a);
}
