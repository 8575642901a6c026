// The first pass over what a threshold looks at: a bit for each element and a count a segment; with feedback the sum.
#pragma once

#include "kernels/compensate.h"
#include "kernels/dither.h"
#include "kernels/marks.h"

namespace gradwire::GRADWIRE_TARGET {

template <bool kDithered>
GRADWIRE_INLINE Mask exceeds(const ThresholdScan& k, std::int64_t i, F32 x) {
  if (kDithered) return ge(abs_bits(x), as_u32(set(k.level) * dither(i)));
  return gt(abs_bits(x), set_u32(k.least));
}

template <bool kDithered>
GRADWIRE_INLINE int threshold_step(const ThresholdScan& k, std::int64_t i, int count, U32& worst) {
  const F32 x = k.grad ? compensate(k, i, count, worst) : load_ahead(k.x + i, count);
  if (k.grad) store(k.residual + i, x, count);
  return put_marks(k.bitmap, i, bits_below(exceeds<kDithered>(k, i, x), count), count);
}

template <bool kDithered>
GRADWIRE_INLINE void threshold_scan_of(const ThresholdScan& args, std::int64_t begin, std::int64_t end) {
  const ThresholdScan k = args;
  U32 worst = set_u32(0);
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t stop = end - i < 65536 ? end : i + 65536, segment = i / 65536;
    std::int32_t found = 0;
    for (; stop - i >= kLanes; i += kLanes) found += threshold_step<kDithered>(k, i, kLanes, worst);
    if (i < stop) found += threshold_step<kDithered>(k, i, int(stop - i), worst), i = stop;
    k.counts[segment] = found;
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

void threshold_scan(const ThresholdScan& args, std::int64_t begin, std::int64_t end) {
  if (args.level > 0) return threshold_scan_of<true>(args, begin, end);
  threshold_scan_of<false>(args, begin, end);
}

}  // namespace gradwire::GRADWIRE_TARGET
