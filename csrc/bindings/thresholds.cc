// Codes of fixed thresholds: 2 bits, 1 bit, ternary streams, and what exceeds a threshold.
#include <cmath>

#include "auto_threshold.h"
#include "bindings/common.h"
#include "ternary.h"
#include "threshold.h"

namespace gradwire::bindings {

namespace {

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

// A float for each payload; without an address there are none.
Rows factors(Address address, Size count, Size stride) {
  return {reinterpret_cast<const std::uint8_t*>(address), count, stride};
}

void ternary_encode_(Address codes, Address used, Address stream, bool words, Size n, int threads) {
  ternary_encode({pointer<const std::uint8_t>(codes, n), pointer<std::int32_t>(used, 1),
                  pointer<std::uint8_t>(stream, 1), words},
                 n, threads);
}

void ternary_add_decoded_(Address streams, Size count, Size stride, Size length, Address steps, Size steps_stride,
                          Address out, double threshold, double scale, Size n, int threads) {
  if (length < 0) throw std::invalid_argument("a length must not be negative");
  ternary_add_decoded({rows(streams, count, stride, length), length, pointer<float>(out, n),
                       float(scale) * float(threshold), factors(steps, count, steps_stride)},
                      n, threads);
}

void twobit_add_decoded(Address codes, Size count, Size stride, Address steps, Size steps_stride, Address out,
                        double threshold, double scale, Size n, int threads) {
  const TwobitAddDecoded all = {rows(codes, count, stride, n), pointer<float>(out, n),
                                float(scale) * float(threshold)};
  if (steps == 0) return run(&KernelTable::twobit_add_decoded, all, n, 16, threads);
  const Rows each = factors(steps, count, steps_stride);
  // Neighbours of equal step together: where the ranks agree, that is one pass over `out`.
  for (Size w = 0, end; w < count; w = end) {
    const float factor = factor_of(each, w);
    for (end = w + 1; end < count && factor_of(each, end) == factor;) ++end;
    const Rows some = {all.codes.data + w * stride, end - w, stride};
    run(&KernelTable::twobit_add_decoded, {some, all.out, all.step * factor}, n, 16, threads);
  }
}

void dithered_encode(Address x, Address codes, Address level, Size n, int threads) {
  run(&KernelTable::dithered_encode,
      {pointer<const float>(x, n), pointer<std::uint8_t>(codes, n), *pointer<const float>(level, 1)}, n, 16, threads);
}

void dithered_encode_feedback(Address grad, Address residual, Address codes, Address threshold, Address level,
                              Address status, Size n, int threads) {
  run(&KernelTable::dithered_encode_feedback,
      {feedback(grad, residual, status, n), pointer<std::uint8_t>(codes, n), *pointer<const float>(level, 1),
       *pointer<const float>(threshold, 1)},
      n, 16, threads);
}

void auto_threshold_(Address x, Address threshold, Address level, Address advice, Address agreed, Address turn,
                     Size share, Address residual, Size n) {
  if (share < 1) throw std::invalid_argument("at least one element must be wanted");
  auto_threshold({pointer<const float>(x, n), reinterpret_cast<const float*>(residual), share,
                  pointer<float>(threshold, 1), pointer<float>(level, 1), pointer<float>(advice, 2),
                  pointer<const float>(agreed, 2), pointer<std::int64_t>(turn, 1)},
                 n);
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

float level_at(Address level) { return level == 0 ? 0.0f : *reinterpret_cast<const float*>(level); }

void threshold_encode_(Address x, Address used, Address stream, double threshold, Address level, Size n, int threads) {
  threshold_encode({{nullptr, nullptr, nullptr}, pointer<const float>(x, n), float(threshold), level_at(level),
                    pointer<std::int32_t>(used, 1), pointer<std::uint8_t>(stream, 8)},
                   n, threads);
}

void threshold_encode_feedback(Address grad, Address residual, Address used, Address stream, double threshold,
                               Address status, Address level, Size n, int threads) {
  threshold_encode({feedback(grad, residual, status, n), pointer<const float>(residual, n), float(threshold),
                    level_at(level), pointer<std::int32_t>(used, 1), pointer<std::uint8_t>(stream, 8)},
                   n, threads);
}

void threshold_add_decoded_(Address streams, Size count, Size stride, Size length, Address out, double scale, Size n,
                            int threads) {
  if (length < 0) throw std::invalid_argument("a length must not be negative");
  threshold_add_decoded({rows(streams, count, stride, length), length, pointer<float>(out, n), float(scale)}, n,
                        threads);
}

}  // namespace

void bind_thresholds(nb::module_& m) {
  kernel(m, "twobit_encode", &twobit_encode, "x"_a, "codes"_a, "threshold"_a);
  kernel(m, "twobit_encode_feedback", &twobit_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "threshold"_a,
         "status"_a);
  kernel(m, "twobit_add_decoded", &twobit_add_decoded, "codes"_a, "count"_a, "stride"_a, "steps"_a, "steps_stride"_a,
         "out"_a, "threshold"_a, "scale"_a);
  serial(m, "auto_threshold", &auto_threshold_, "x"_a, "threshold"_a, "level"_a, "advice"_a, "agreed"_a, "turn"_a,
         "share"_a, "residual"_a);
  kernel(m, "dithered_encode", &dithered_encode, "x"_a, "codes"_a, "level"_a);
  kernel(m, "dithered_encode_feedback", &dithered_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "threshold"_a,
         "level"_a, "status"_a);
  kernel(m, "strom_encode", &strom_encode, "x"_a, "codes"_a, "threshold"_a);
  kernel(m, "strom_encode_feedback", &strom_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "threshold"_a,
         "status"_a);
  kernel(m, "ternary_encode", &ternary_encode_, "codes"_a, "used"_a, "stream"_a, "words"_a);
  kernel(m, "ternary_add_decoded", &ternary_add_decoded_, "streams"_a, "count"_a, "stride"_a, "length"_a, "steps"_a,
         "steps_stride"_a, "out"_a, "threshold"_a, "scale"_a);
  kernel(m, "threshold_encode", &threshold_encode_, "x"_a, "used"_a, "stream"_a, "threshold"_a, "level"_a);
  kernel(m, "threshold_encode_feedback", &threshold_encode_feedback, "grad"_a, "residual"_a, "used"_a, "stream"_a,
         "threshold"_a, "status"_a, "level"_a);
  kernel(m, "threshold_add_decoded", &threshold_add_decoded_, "streams"_a, "count"_a, "stride"_a, "length"_a, "out"_a,
         "scale"_a);
  kernel(m, "onebit_encode", &onebit_encode, "x"_a, "codes"_a, "threshold"_a, "step"_a);
  kernel(m, "onebit_encode_feedback", &onebit_encode_feedback, "grad"_a, "residual"_a, "codes"_a, "threshold"_a,
         "status"_a, "step"_a);
  kernel(m, "onebit_add_decoded", &onebit_add_decoded, "codes"_a, "count"_a, "stride"_a, "steps"_a, "steps_stride"_a,
         "out"_a, "scale"_a);
}

}  // namespace gradwire::bindings
