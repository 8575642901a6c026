// gradwire._kernels: the kernels as Python functions over addresses and sizes. The Python wrappers in gradwire/ops
// check what a tensor is; here only what would make the C++ code itself undefined.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <vector>

#include "dispatch.h"
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

// The step of a sender, 1 where there is no address.
float step_at(Address step) { return step == 0 ? 1.0f : *reinterpret_cast<const float*>(step); }

void onebit_encode(Address x, Address codes, double threshold, Address step, Size n, int threads) {
  run(&KernelTable::onebit_encode,
      {pointer<const float>(x, n), pointer<std::uint8_t>(codes, n), float(threshold) * step_at(step)}, n, 32, threads);
}

void onebit_encode_feedback(Address grad, Address residual, Address codes, double threshold, Address status,
                            Address step, Size n, int threads) {
  run(&KernelTable::onebit_encode_feedback,
      {feedback(grad, residual, status, n), pointer<std::uint8_t>(codes, n), float(threshold) * step_at(step),
       step_at(step)},
      n, 32, threads);
}

void onebit_add_decoded(Address codes, Size count, Size stride, Address steps, Size steps_stride, Address out,
                        double scale, Size n, int threads) {
  const Rows step_rows = {reinterpret_cast<const std::uint8_t*>(steps), count, steps_stride};
  run(&KernelTable::onebit_add_decoded,
      {rows(codes, count, stride, n), step_rows, pointer<float>(out, n), float(scale)}, n, 32, threads);
}

// Elements of one partial sum: a part of the L1 cache, and few enough for float32.
constexpr Size kSumBlock = 4096;

// Neighbours at half the distance, then at half of that: the order of the reference, whatever the threads.
float sum_as_tree(std::vector<float>& sums) {
  std::size_t size = 1;
  while (size < sums.size()) size *= 2;
  sums.resize(size);
  for (std::size_t half = size / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  return sums[0];
}

void mean_magnitude(Address x, Address residual, Address mean, Size n, int threads) {
  const float* const added = residual == 0 ? nullptr : pointer<const float>(residual, n);
  std::vector<float> sums(std::size_t((n + kSumBlock - 1) / kSumBlock));
  run(&KernelTable::magnitude_sums, {pointer<const float>(x, n), added, sums.data(), kSumBlock}, n, kSumBlock, threads);
  *pointer<float>(mean, 1) = n == 0 ? 0.0f : sum_as_tree(sums) / float(n);
}

void sign_encode(Address x, Address codes, Size n, int threads) {
  run(&KernelTable::sign_encode, {pointer<const float>(x, n), pointer<std::uint8_t>(codes, n)}, n, 32, threads);
}

void sign_encode_feedback(Address grad, Address residual, Address codes, Address status, Size n, int threads) {
  run(&KernelTable::sign_encode_feedback,
      {feedback(grad, residual, status, n), pointer<std::uint8_t>(codes, n)}, n, 32, threads);
}

void sign_add_decoded(Address codes, Size count, Size stride, Address out, double scale, Size n, int threads) {
  run(&KernelTable::sign_add_decoded, {rows(codes, count, stride, n), pointer<float>(out, n), float(scale)}, n, 32,
      threads);
}

void sign_vote(Address mean, double tie, Size n, int threads) {
  run(&KernelTable::sign_vote, {pointer<float>(mean, n), float(tie)}, n, 16, threads);
}

MomentumUpdate momentum(Address grad, Address momentum, double beta, Address status, Size n) {
  return {pointer<float>(grad, n), pointer<float>(momentum, n), reinterpret_cast<std::int32_t*>(status), float(beta),
          float(1.0 - beta)};
}

void momentum_update(Address grad, Address kept, double beta, Address status, Size n, int threads) {
  run(&KernelTable::momentum_update, momentum(grad, kept, beta, status, n), n, 16, threads);
}

void signum_encode(Address grad, Address kept, Address codes, double beta, Address status, Size n, int threads) {
  run(&KernelTable::signum_encode, {momentum(grad, kept, beta, status, n), pointer<std::uint8_t>(codes, n)}, n, 32,
      threads);
}

BlockSigns block_signs(Address levels, Address codes, Size block, Size n) {
  if (block < 32 || block % 32 != 0) throw std::invalid_argument("block must be a multiple of 32");
  return {pointer<float>(levels, n), pointer<std::uint8_t>(codes, n), block};
}

using BlockSignKernel = void (*KernelTable::*)(const BlockSignEncode&, Size, Size);
using BlockSignFeedbackKernel = void (*KernelTable::*)(const BlockSignEncodeFeedback&, Size, Size);
using BlockSignSumKernel = void (*KernelTable::*)(const BlockSignAddDecoded&, Size, Size);

template <BlockSignKernel kKernel>
void block_sign_encode(Address x, Address levels, Address codes, Size block, Size n, int threads) {
  run(kKernel, {block_signs(levels, codes, block, n), pointer<const float>(x, n)}, n, block, threads);
}

template <BlockSignFeedbackKernel kKernel>
void block_sign_encode_feedback(Address grad, Address residual, Address levels, Address codes, Size block,
                                Address status, Size n, int threads) {
  run(kKernel, {feedback(grad, residual, status, n), block_signs(levels, codes, block, n)}, n, block, threads);
}

template <BlockSignSumKernel kKernel>
void block_sign_add_decoded(Address levels, Size levels_stride, Address codes, Size codes_stride, Size count,
                            Address out, Size block, double scale, Size n, int threads) {
  block_signs(levels, codes, block, 0);
  run(kKernel,
      {rows(levels, count, levels_stride, n), rows(codes, count, codes_stride, n), pointer<float>(out, n), block,
       float(scale)},
      n, block, threads);
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
  kernel("onebit_encode", &onebit_encode, "x"_a, "codes"_a, "threshold"_a, "step"_a);
  kernel("onebit_encode_feedback", &onebit_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "threshold"_a,
         "status"_a, "step"_a);
  kernel("onebit_add_decoded", &onebit_add_decoded, "codes"_a, "count"_a, "stride"_a, "steps"_a, "steps_stride"_a,
         "out"_a, "scale"_a);
  kernel("mean_magnitude", &mean_magnitude, "x"_a, "residual"_a, "mean"_a);
  kernel("sign_encode", &sign_encode, "x"_a, "codes"_a);
  kernel("sign_encode_feedback", &sign_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "status"_a);
  kernel("sign_add_decoded", &sign_add_decoded, "codes"_a, "count"_a, "stride"_a, "out"_a, "scale"_a);
  kernel("sign_vote", &sign_vote, "mean"_a, "tie"_a);
  kernel("momentum_update", &momentum_update, "grad"_a, "momentum"_a, "beta"_a, "status"_a);
  kernel("signum_encode", &signum_encode, "grad"_a, "momentum"_a, "codes"_a, "beta"_a, "status"_a);
  kernel("scaled_sign_encode", &block_sign_encode<&KernelTable::scaled_sign_encode>, "x"_a, "scales"_a, "codes"_a,
         "block"_a);
  kernel("scaled_sign_encode_feedback", &block_sign_encode_feedback<&KernelTable::scaled_sign_encode_feedback>,
         "grad"_a, "residual"_a, "scales"_a, "codes"_a, "block"_a, "status"_a);
  kernel("scaled_sign_add_decoded", &block_sign_add_decoded<&KernelTable::scaled_sign_add_decoded>, "scales"_a,
         "scales_stride"_a, "codes"_a, "codes_stride"_a, "count"_a, "out"_a, "block"_a, "scale"_a);
  kernel("two_means_encode", &block_sign_encode<&KernelTable::two_means_encode>, "x"_a, "means"_a, "codes"_a,
         "block"_a);
  kernel("two_means_encode_feedback", &block_sign_encode_feedback<&KernelTable::two_means_encode_feedback>, "grad"_a,
         "residual"_a, "means"_a, "codes"_a, "block"_a, "status"_a);
  kernel("two_means_add_decoded", &block_sign_add_decoded<&KernelTable::two_means_add_decoded>, "means"_a,
         "means_stride"_a, "codes"_a, "codes_stride"_a, "count"_a, "out"_a, "block"_a, "scale"_a);
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
