// The one pass over what a threshold looks at: values side by side, a bit for each element, and a count a segment.
#pragma once

#include "kernels/compensate.h"
#include "kernels/dither.h"

namespace gradwire::GRADWIRE_TARGET {

template <bool kDithered>
GRADWIRE_INLINE Mask exceeds(const ThresholdScan& k, std::int64_t i, F32 x) {
  if (kDithered) return ge(abs_bits(x), as_u32(set(k.level) * dither(i)));
  return gt(abs_bits(x), set_u32(k.least));
}

template <bool kDithered>
GRADWIRE_INLINE void threshold_step(const ThresholdScan& k, std::int64_t i, int count, std::int64_t room,
                                    std::int64_t& found, U32& worst) {
  const F32 x = k.grad ? compensate(k, i, count, worst) : load_ahead(k.x + i, count);
  const Mask sent = first_of(exceeds<kDithered>(k, i, x), count);
  if (k.grad) store(k.residual + i, select(sent, set(0.0f), x), count);
  const std::uint16_t word = bits(sent);
  std::memcpy(k.bitmap + i / 8, &word, sizeof word);
  std::uint32_t* const values = reinterpret_cast<std::uint32_t*>(k.values) + found;
  // A bulk store may write 16, and beyond the room lies what another thread writes.
  found += found + kLanes <= room ? store_front(values, as_u32(x), sent) : store_selected(values, as_u32(x), sent);
}

template <bool kDithered>
GRADWIRE_INLINE void threshold_scan_of(const ThresholdScan& args, std::int64_t begin, std::int64_t end) {
  const ThresholdScan k = args;
  std::int64_t found = 0;
  U32 worst = set_u32(0);
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t stop = end - i < 65536 ? end : i + 65536, segment = i / 65536, before = found;
    for (; stop - i >= kLanes; i += kLanes) threshold_step<kDithered>(k, i, kLanes, end - begin, found, worst);
    if (i < stop) threshold_step<kDithered>(k, i, int(stop - i), end - begin, found, worst), i = stop;
    k.counts[segment] = std::int32_t(found - before);
  }
  *k.found = found;
  if (k.status) flag_nonfinite(k.status, worst);
}

static void threshold_scan(const ThresholdScan& args, std::int64_t begin, std::int64_t end) {
  if (args.level > 0) return threshold_scan_of<true>(args, begin, end);
  threshold_scan_of<false>(args, begin, end);
}

}  // namespace gradwire::GRADWIRE_TARGET
