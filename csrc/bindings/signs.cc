// Signs, with and without scales, and their momentum.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bindings/common.h"

namespace gradwire::bindings {

namespace {

// Elements of one partial sum: a part of the L1 cache, and few enough for float32.
constexpr Size kSumBlock = 4096;

// 2^-100: a gradient that comes after many steps of zeros can be divided by it.
constexpr float kLeastScale = 0x1p-100f;

// Neighbours at half the distance, then at half of that: the order of the reference, whatever the threads.
float sum_as_tree(std::vector<float>& sums) {
  std::size_t size = 1;
  while (size < sums.size()) size *= 2;
  sums.resize(size);
  for (std::size_t half = size / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  return sums[0];
}

float mean_of_magnitudes(const float* x, const float* added, Size n, int threads) {
  std::vector<float> sums(std::size_t((n + kSumBlock - 1) / kSumBlock));
  run(&KernelTable::magnitude_sums, {x, added, sums.data(), kSumBlock}, n, kSumBlock, threads);
  return n == 0 ? 0.0f : sum_as_tree(sums) / float(n);
}

void mean_magnitude(Address x, Address residual, Address mean, Size n, int threads) {
  const float* const added = residual == 0 ? nullptr : pointer<const float>(residual, n);
  *pointer<float>(mean, 1) = mean_of_magnitudes(pointer<const float>(x, n), added, n, threads);
}

void precondition(Address grad, Address scale, Address status, Size n, int threads) {
  run(&KernelTable::precondition,
      {pointer<float>(grad, n), pointer<const float>(scale, n), reinterpret_cast<std::int32_t*>(status)}, n, 16,
      threads);
}

void precondition_update(Address out, Address scale, Address bad, double beta, double floor, Size n, int threads) {
  float* const mean = pointer<float>(out, n);
  float* const scales = pointer<float>(scale, n);
  const bool still = *pointer<const std::uint8_t>(bad, 1) != 0;
  const float level = mean_of_magnitudes(scales, nullptr, n, threads);
  if (level == 0.0f) {
    // Nothing has arrived before: all scales begin alike, and what arrives stays as it is.
    const float first = mean_of_magnitudes(mean, nullptr, n, threads);
    if (!still && first > 0.0f && std::isfinite(first)) std::fill_n(scales, n, std::max(first, kLeastScale));
    return;
  }
  int exponent = 0;
  std::frexp(level, &exponent);
  exponent = std::clamp(exponent, -100, 100);
  run(&KernelTable::precondition_update,
      {mean, scales, float(beta), float(1.0 - beta), std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent),
       std::max(level * float(floor), kLeastScale), still},
      n, 16, threads);
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

}  // namespace

void bind_signs(nb::module_& m) {
  kernel(m, "mean_magnitude", &mean_magnitude, "x"_a, "residual"_a, "mean"_a);
  kernel(m, "sign_encode", &sign_encode, "x"_a, "codes"_a);
  kernel(m, "sign_encode_feedback", &sign_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "status"_a);
  kernel(m, "sign_add_decoded", &sign_add_decoded, "codes"_a, "count"_a, "stride"_a, "out"_a, "scale"_a);
  kernel(m, "sign_vote", &sign_vote, "mean"_a, "tie"_a);
  kernel(m, "precondition", &precondition, "grad"_a, "scale"_a, "status"_a);
  kernel(m, "precondition_update", &precondition_update, "out"_a, "scale"_a, "bad"_a, "beta"_a, "floor"_a);
  kernel(m, "momentum_update", &momentum_update, "grad"_a, "momentum"_a, "beta"_a, "status"_a);
  kernel(m, "signum_encode", &signum_encode, "grad"_a, "momentum"_a, "codes"_a, "beta"_a, "status"_a);
  kernel(m, "scaled_sign_encode", &block_sign_encode<&KernelTable::scaled_sign_encode>, "x"_a, "scales"_a, "codes"_a,
         "block"_a);
  kernel(m, "scaled_sign_encode_feedback", &block_sign_encode_feedback<&KernelTable::scaled_sign_encode_feedback>,
         "grad"_a, "residual"_a, "scales"_a, "codes"_a, "block"_a, "status"_a);
  kernel(m, "scaled_sign_add_decoded", &block_sign_add_decoded<&KernelTable::scaled_sign_add_decoded>, "scales"_a,
         "scales_stride"_a, "codes"_a, "codes_stride"_a, "count"_a, "out"_a, "block"_a, "scale"_a);
  kernel(m, "two_means_encode", &block_sign_encode<&KernelTable::two_means_encode>, "x"_a, "means"_a, "codes"_a,
         "block"_a);
  kernel(m, "two_means_encode_feedback", &block_sign_encode_feedback<&KernelTable::two_means_encode_feedback>, "grad"_a,
         "residual"_a, "means"_a, "codes"_a, "block"_a, "status"_a);
  kernel(m, "two_means_add_decoded", &block_sign_add_decoded<&KernelTable::two_means_add_decoded>, "means"_a,
         "means_stride"_a, "codes"_a, "codes_stride"_a, "count"_a, "out"_a, "block"_a, "scale"_a);
}

}  // namespace gradwire::bindings
