// Codes of eight bits, and tagged floats.
#include <cmath>
#include <cstring>
#include <vector>

#include "bindings/common.h"
#include "inceptionn.h"

namespace gradwire::bindings {

namespace {

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
  if (block) return run(&KernelTable::eightbit_encode, args, n, block, threads);
  measure_all(&KernelTable::largest, Largest{args.x, nullptr}, args.scales, n, threads);
  run_backwards(&KernelTable::eightbit_encode, args, n, 16, threads);
}

void eightbit_encode_feedback(Address grad, Address residual, Address scales, Address codes, Address book, int kind,
                              Size block, Address status, Size n, int threads) {
  const EightbitEncodeFeedback args = {feedback(grad, residual, status, n),
                                       eightbit(scales, codes, book, kind, block, n)};
  if (block) return run(&KernelTable::eightbit_encode_feedback, args, n, block, threads);
  measure_all(&KernelTable::largest_sum, LargestSum{args.grad, args.residual, nullptr}, args.scales, n, threads);
  run_backwards(&KernelTable::eightbit_encode_feedback, args, n, 16, threads);
}

void eightbit_add_decoded(Address scales, Size scales_stride, Address codes, Size codes_stride, Size count, Address out,
                          Address book, int kind, Size block, double scale, Size n, int threads) {
  run(&KernelTable::eightbit_add_decoded,
      {rows(scales, count, scales_stride, n), rows(codes, count, codes_stride, n), pointer<float>(out, n),
       pointer<const float>(book, n), codebook(kind, block), block, float(scale)},
      n, block ? block : 16, threads);
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

void inceptionn_encode_feedback_(Address grad, Address residual, Address used, Address stream, int bound, Address status,
                                 Size n, int threads) {
  check_bound(bound);
  inceptionn_encode_feedback({pointer<const float>(residual, n), pointer<std::int32_t>(used, 1),
                              pointer<std::uint8_t>(stream, n), bound, n},
                             feedback(grad, residual, status, n), threads);
}

void inceptionn_add_decoded_(Address streams, Size count, Size stride, Size bytes, Address out, int bound, double scale,
                             Size n, int threads) {
  check_bound(bound);
  inceptionn_add_decoded(
      {rows(streams, count, stride, bytes), bytes, pointer<float>(out, n), bound, float(scale), n}, threads);
}

}  // namespace

void bind_eightbit(nb::module_& m) {
  kernel(m, "eightbit_encode", &eightbit_encode, "x"_a, "scales"_a, "codes"_a, "book"_a, "kind"_a, "block"_a);
  kernel(m, "eightbit_encode_feedback", &eightbit_encode_feedback, "grad"_a, "residual"_a, "scales"_a, "codes"_a, "book"_a,
         "kind"_a, "block"_a, "status"_a);
  kernel(m, "eightbit_add_decoded", &eightbit_add_decoded, "scales"_a, "scales_stride"_a, "codes"_a, "codes_stride"_a,
         "count"_a, "out"_a, "book"_a, "kind"_a, "block"_a, "scale"_a);
  kernel(m, "inceptionn_encode", &inceptionn_encode_, "x"_a, "used"_a, "stream"_a, "bound"_a);
  kernel(m, "inceptionn_encode_feedback", &inceptionn_encode_feedback_, "grad"_a, "residual"_a, "used"_a, "stream"_a,
         "bound"_a, "status"_a);
  kernel(m, "inceptionn_add_decoded", &inceptionn_add_decoded_, "streams"_a, "count"_a, "stride"_a, "bytes"_a, "out"_a, "bound"_a, "scale"_a);
}

}  // namespace gradwire::bindings
