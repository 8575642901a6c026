// What exceeds a threshold.
#include "auto_threshold.h"
#include "bindings/common.h"
#include "threshold.h"

namespace gradwire::bindings {

namespace {

void auto_threshold_(Address x, Address threshold, Address level, Address advice, Address agreed, Address turn,
                     Size share, Address residual, Size n) {
  if (share < 1) throw std::invalid_argument("at least one element must be wanted");
  auto_threshold({pointer<const float>(x, n), reinterpret_cast<const float*>(residual), share,
                  pointer<float>(threshold, 1), pointer<float>(level, 1), pointer<float>(advice, 2),
                  pointer<const float>(agreed, 2), pointer<std::int64_t>(turn, 1)},
                 n);
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
  serial(m, "auto_threshold", &auto_threshold_, "x"_a, "threshold"_a, "level"_a, "advice"_a, "agreed"_a, "turn"_a,
         "share"_a, "residual"_a);
  kernel(m, "threshold_encode", &threshold_encode_, "x"_a, "used"_a, "stream"_a, "threshold"_a, "level"_a);
  kernel(m, "threshold_encode_feedback", &threshold_encode_feedback, "grad"_a, "residual"_a, "used"_a, "stream"_a,
         "threshold"_a, "status"_a, "level"_a);
  kernel(m, "threshold_add_decoded", &threshold_add_decoded_, "streams"_a, "count"_a, "stride"_a, "length"_a, "out"_a,
         "scale"_a);
}

}  // namespace gradwire::bindings
