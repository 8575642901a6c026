// gradwire._kernels: the kernels as Python functions over addresses and sizes. The Python wrappers in gradwire/ops
// check what a tensor is; here only what would make the C++ code itself undefined.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "dispatch.h"
#include "places.h"
#include "ternary.h"
#include "entropy.h"
#include "threshold.h"
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

// Where blocks are large, a decoder's ranges and those of a known norm end inside of them.
constexpr Size kRoundRange = 2048;

void check_qsgd(int bits, Size block) {
  if (bits < 2 || bits > 8) throw std::invalid_argument("bits must be from 2 to 8");
  if (block < 16 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
}

Qsgd qsgd(Address norms, Address codes, int bits, Size block, bool l2, Size key, Size step, double shrink, int levels,
          bool powers, Size n) {
  check_qsgd(bits, block);
  return {pointer<float>(norms, n), pointer<std::uint8_t>(codes, n), bits, block, l2, std::uint64_t(key),
          std::uint64_t(step), float(levels), powers, float(shrink)};
}

void qsgd_encode(Address x, Address norms, Address codes, int bits, Size block, bool l2, Size key, Size step,
                 int levels, bool powers, Size n, int threads) {
  run(&KernelTable::qsgd_encode,
      {qsgd(norms, codes, bits, block, l2, key, step, 1.0, levels, powers, n), pointer<const float>(x, n)}, n, block,
      threads);
}

void qsgd_encode_feedback(Address grad, Address residual, Address norms, Address codes, int bits, Size block, bool l2,
                          Size key, Size step, Address status, double shrink, int levels, bool powers, Size n,
                          int threads) {
  run(&KernelTable::qsgd_encode_feedback,
      {feedback(grad, residual, status, n), qsgd(norms, codes, bits, block, l2, key, step, shrink, levels, powers, n)},
      n, block, threads);
}

void qsgd_add_decoded(Address norms, Size norms_stride, Address codes, Size codes_stride, Size count, Address out,
                      int bits, Size block, double scale, int levels, bool powers, Size n, int threads) {
  check_qsgd(bits, block);
  run(&KernelTable::qsgd_add_decoded,
      {rows(norms, count, norms_stride, n), rows(codes, count, codes_stride, n), pointer<float>(out, n), bits, block,
       float(scale), float(levels), powers},
      n, block < kRoundRange ? block : kRoundRange, threads);
}

void round_encode(Address x, Address norm, Address codes, int bits, int levels, Size key, Size step, Size n,
                  int threads) {
  run(&KernelTable::round_encode,
      {qsgd(norm, codes, bits, 16, false, key, step, 1.0, levels, false, n), pointer<const float>(x, n)}, n,
      kRoundRange, threads);
}

void round_keep(Address residual, Address norm, Address codes, int bits, int levels, double shrink, Size key, Size step,
                Size n, int threads) {
  run(&KernelTable::round_keep,
      {qsgd(norm, codes, bits, 16, false, key, step, shrink, levels, false, n), pointer<float>(residual, n)}, n,
      kRoundRange, threads);
}

void moments(Address x, Address table, bool centred, Size n, int threads) {
  run(&KernelTable::moments, {pointer<const float>(x, n), pointer<float>(table, n), centred}, n, kMomentSegment,
      threads);
}

void moments_feedback(Address grad, Address residual, Address table, bool centred, Address status, Size n,
                      int threads) {
  run(&KernelTable::moments_feedback, {feedback(grad, residual, status, n), pointer<float>(table, n), centred}, n,
      kMomentSegment, threads);
}

ThreeLc three_lc(Address scales, Address lengths, Address stream, Size block, double sparsity, Size n) {
  if (block < 16) throw std::invalid_argument("block must be at least 16");
  return {pointer<float>(scales, n), pointer<std::int16_t>(lengths, n), pointer<std::uint8_t>(stream, n), block,
          float(sparsity)};
}

// The blocks of a stream side by side, zeros after them. Returns their length.
Size join_blocks(const ThreeLc& k, Size n) {
  const Size room = (k.block + 4) / 5, blocks = (n + k.block - 1) / k.block, last = n - k.block * (blocks - 1);
  Size used = 0;
  for (Size block = 0; block < blocks; ++block) {
    std::memmove(k.stream + used, k.stream + block * room, std::size_t(k.lengths[block]));
    used += k.lengths[block];
  }
  if (n > 0) std::memset(k.stream + used, 0, std::size_t((blocks - 1) * room + (last + 4) / 5 - used));
  return used;
}

Size three_lc_encode(Address x, Address scales, Address lengths, Address stream, Size block, double sparsity, Size n,
                     int threads) {
  const ThreeLcEncode k = {three_lc(scales, lengths, stream, block, sparsity, n), pointer<const float>(x, n)};
  run(&KernelTable::three_lc_encode, k, n, block, threads);
  return join_blocks(k, n);
}

Size three_lc_encode_feedback(Address grad, Address residual, Address scales, Address lengths, Address stream,
                              Size block, double sparsity, Address status, Size n, int threads) {
  const ThreeLcEncodeFeedback k = {feedback(grad, residual, status, n),
                                   three_lc(scales, lengths, stream, block, sparsity, n)};
  run(&KernelTable::three_lc_encode_feedback, k, n, block, threads);
  return join_blocks(k, n);
}

void three_lc_add_decoded(Address scales, Size scales_stride, Address lengths, Size lengths_stride, Address stream,
                          Size stream_stride, Size ranks, Size bytes, Address out, Size block, double scale, Size n,
                          int threads) {
  if (block < 16) throw std::invalid_argument("block must be at least 16");
  run(&KernelTable::three_lc_add_decoded,
      {rows(scales, ranks, scales_stride, n), rows(lengths, ranks, lengths_stride, n),
       rows(stream, ranks, stream_stride, bytes), bytes, pointer<float>(out, n), block, float(scale)},
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

// A block is at most as long as the kernels have room for; see kernels/hadamard.h.
void check_rotation(Size block) {
  if (block < 16 || block > 16384 || (block & (block - 1)) != 0)
    throw std::invalid_argument("block must be a power of two from 16 to 16384");
}

void block_norms(Address x, Address norms, Size block, Size n, int threads) {
  if (block < 16 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
  run(&KernelTable::block_norms, {pointer<const float>(x, n), pointer<float>(norms, n), block}, n, block, threads);
}

void thc_encode(Address x, Address norms, Address seed, Address codes, Size block, int levels, double clip, Size key,
                Size step, Size n, int threads) {
  check_rotation(block);
  const float factor = 0.5f * float(levels) / float(clip);
  run(&KernelTable::thc_encode,
      {pointer<const float>(x, n), pointer<const float>(norms, n), pointer<const std::int64_t>(seed, n),
       pointer<std::uint8_t>(codes, n), block, float(levels), factor, std::uint64_t(key), std::uint64_t(step)},
      n, block, threads);
}

// Beyond 255 the codes of all ranks may have run over, and nothing that is decoded would mean anything.
void thc_add_decoded(Address norms, Address seed, Address codes, Address ranks, Address out, Size block, int levels,
                     double clip, double scale, Size n, int threads) {
  check_rotation(block);
  const std::int32_t world = n > 0 ? *pointer<const std::int32_t>(ranks, n) : 1;
  const bool fits = world > 0 && world <= 255 / levels;
  const float step = fits ? 2.0f / float(levels * world) : __builtin_nanf("");
  run(&KernelTable::thc_add_decoded,
      {pointer<const float>(norms, n), pointer<const std::int64_t>(seed, n), pointer<const std::uint8_t>(codes, n),
       pointer<float>(out, n), block, step, float(clip), float(scale)},
      n, block, threads);
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

void check_sketch(int rows, Size columns, Size n) {
  if (rows < 1 || rows > 7) throw std::invalid_argument("rows must be from 1 to 7");
  if (columns % 16 != 0 || columns < 0 || (n > 0 && columns == 0))
    throw std::invalid_argument("columns must be a multiple of 16");
}

void sketch_add(Address x, Address table, int rows, Size columns, Size key, Size step, Size n, int threads) {
  check_sketch(rows, columns, n);
  const Size span = (n + 255) / 256 * 256;
  run(&KernelTable::sketch_add,
      {pointer<const float>(x, n), pointer<float>(table, n), rows, columns, std::uint64_t(key), std::uint64_t(step), n},
      rows * span, span > 0 ? span : 16, threads);
}

void sketch_estimate(Address table, Address out, int rows, Size columns, Size key, Size step, Size n, int threads) {
  check_sketch(rows, columns, n);
  run(&KernelTable::sketch_estimate,
      {pointer<const float>(table, n), pointer<float>(out, n), rows, columns, std::uint64_t(key), std::uint64_t(step)},
      n, 256, threads);
}

void sparse_add_decoded(Address values, Size values_stride, Address indices, Size indices_stride, Address counts,
                        Size counts_stride, Size ranks, Size k, Address out, double scale, Size n, int threads) {
  run(&KernelTable::sparse_add_decoded,
      {rows(values, ranks, values_stride, k), rows(indices, ranks, indices_stride, k),
       rows(counts, ranks, counts_stride, n), k, pointer<float>(out, n), n, float(scale)},
      n, 65536, threads);
}

template <void (*Coder)(const EntropyEncode&, int)>
void entropy_encode(Address symbols, Address table, Address sizes, Address out, Size room, Size n, int threads) {
  Coder({pointer<const std::uint8_t>(symbols, n), pointer<const std::int32_t>(table, kSymbols),
         pointer<std::int32_t>(sizes, n), pointer<std::uint8_t>(out, room), room, n},
        threads);
}

template <void (*Coder)(const EntropyDecode&, int)>
void entropy_decode(Address stream, Size nbytes, Address sizes, Address table, Address symbols, Address status, Size n,
                    int threads) {
  Coder({pointer<const std::uint8_t>(stream, nbytes), nbytes, pointer<const std::int32_t>(sizes, n),
         pointer<const std::int32_t>(table, kSymbols), pointer<std::uint8_t>(symbols, n),
         pointer<std::int32_t>(status, 1), n},
        threads);
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
  kernel("qsgd_encode", &qsgd_encode, "x"_a, "norms"_a, "codes"_a, "bits"_a, "block"_a, "l2"_a, "key"_a, "step"_a,
         "levels"_a, "powers"_a);
  kernel("qsgd_encode_feedback", &qsgd_encode_feedback, "grad"_a, "residual"_a, "norms"_a, "codes"_a, "bits"_a,
         "block"_a, "l2"_a, "key"_a, "step"_a, "status"_a, "shrink"_a, "levels"_a, "powers"_a);
  kernel("qsgd_add_decoded", &qsgd_add_decoded, "norms"_a, "norms_stride"_a, "codes"_a, "codes_stride"_a, "count"_a,
         "out"_a, "bits"_a, "block"_a, "scale"_a, "levels"_a, "powers"_a);
  kernel("round_encode", &round_encode, "x"_a, "norm"_a, "codes"_a, "bits"_a, "levels"_a, "key"_a, "step"_a);
  kernel("round_keep", &round_keep, "residual"_a, "norm"_a, "codes"_a, "bits"_a, "levels"_a, "shrink"_a, "key"_a,
         "step"_a);
  kernel("moments", &moments, "x"_a, "table"_a, "centred"_a);
  kernel("moments_feedback", &moments_feedback, "grad"_a, "residual"_a, "table"_a, "centred"_a, "status"_a);
  kernel("block_norms", &block_norms, "x"_a, "norms"_a, "block"_a);
  kernel("thc_encode", &thc_encode, "x"_a, "norms"_a, "seed"_a, "codes"_a, "block"_a, "levels"_a, "clip"_a, "key"_a,
         "step"_a);
  kernel("thc_add_decoded", &thc_add_decoded, "norms"_a, "seed"_a, "codes"_a, "ranks"_a, "out"_a, "block"_a,
         "levels"_a, "clip"_a, "scale"_a);
  kernel("three_lc_encode", &three_lc_encode, "x"_a, "scales"_a, "lengths"_a, "stream"_a, "block"_a, "sparsity"_a);
  kernel("three_lc_encode_feedback", &three_lc_encode_feedback, "grad"_a, "residual"_a, "scales"_a, "lengths"_a,
         "stream"_a, "block"_a, "sparsity"_a, "status"_a);
  kernel("three_lc_add_decoded", &three_lc_add_decoded, "scales"_a, "scales_stride"_a, "lengths"_a,
         "lengths_stride"_a, "stream"_a, "stream_stride"_a, "ranks"_a, "bytes"_a, "out"_a, "block"_a, "scale"_a);
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
  kernel("sketch_add", &sketch_add, "x"_a, "table"_a, "rows"_a, "columns"_a, "key"_a, "step"_a);
  kernel("sketch_estimate", &sketch_estimate, "table"_a, "out"_a, "rows"_a, "columns"_a, "key"_a, "step"_a);
  kernel("sparse_add_decoded", &sparse_add_decoded, "values"_a, "values_stride"_a, "indices"_a, "indices_stride"_a,
         "counts"_a, "counts_stride"_a, "ranks"_a, "k"_a, "out"_a, "scale"_a);
  kernel("rans_encode", &entropy_encode<rans_encode>, "symbols"_a, "table"_a, "sizes"_a, "out"_a, "room"_a);
  kernel("rans_decode", &entropy_decode<rans_decode>, "stream"_a, "nbytes"_a, "sizes"_a, "table"_a, "symbols"_a,
         "status"_a);
  kernel("prefix_encode", &entropy_encode<prefix_encode>, "symbols"_a, "table"_a, "sizes"_a, "out"_a, "room"_a);
  kernel("prefix_decode", &entropy_decode<prefix_decode>, "stream"_a, "nbytes"_a, "sizes"_a, "table"_a, "symbols"_a,
         "status"_a);
}
