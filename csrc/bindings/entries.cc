// Elements that are marked by a bit each.
#include <algorithm>
#include <vector>

#include "bindings/common.h"

namespace gradwire::bindings {

namespace {

Marks marks(Address bitmap, Address counts, Size n) {
  return {pointer<std::uint8_t>(bitmap, n), pointer<std::int32_t>(counts, n)};
}

void mark_beyond(Address x, Address bitmap, Address counts, double high, double low, Size n, int threads) {
  run(&KernelTable::mark_beyond,
      {marks(bitmap, counts, n), pointer<const float>(x, n), float(high), float(low)}, n, kMarkSegment, threads);
}

void mark_drawn(Address x, Address bitmap, Address counts, Address whole, Address whole_counts, double s, Size key,
                Size step, Size n, int threads) {
  run(&KernelTable::mark_drawn,
      {marks(bitmap, counts, n), marks(whole, whole_counts, n), pointer<const float>(x, n), float(s),
       std::uint64_t(key), std::uint64_t(step)},
      n, kMarkSegment, threads);
}

// How many marks lie before each segment; whatever the counts say, no more than k.
std::vector<std::int64_t> starts_of(const std::int32_t* counts, Size k, Size n) {
  std::vector<std::int64_t> starts = {0};
  for (Size s = 0; s * kMarkSegment < n; ++s)
    starts.push_back(std::min(k, starts.back() + std::max<Size>(counts[s], 0)));
  return starts;
}

void take_marked(Address x, Address bitmap, Address counts, Address values, Address indices, Size k, Size n,
                 int threads) {
  const std::vector<std::int64_t> starts = starts_of(pointer<const std::int32_t>(counts, n), k, n);
  run(&KernelTable::take_marked,
      {pointer<const float>(x, n), pointer<const std::uint8_t>(bitmap, n), starts.data(), pointer<float>(values, k),
       pointer<std::uint16_t>(indices, k)},
      n, kMarkSegment, threads);
}

void tail_moments(Address x, Address table, double low, double high, double unit, Size n, int threads) {
  run(&KernelTable::tail_moments,
      {pointer<const float>(x, n), pointer<float>(table, n), float(low), float(high), float(unit)}, n, kTailSegment,
      threads);
}

}  // namespace

void bind_entries(nb::module_& m) {
  kernel(m, "mark_beyond", &mark_beyond, "x"_a, "bitmap"_a, "counts"_a, "high"_a, "low"_a);
  kernel(m, "mark_drawn", &mark_drawn, "x"_a, "bitmap"_a, "counts"_a, "whole"_a, "whole_counts"_a, "s"_a, "key"_a,
         "step"_a);
  kernel(m, "take_marked", &take_marked, "x"_a, "bitmap"_a, "counts"_a, "values"_a, "indices"_a, "k"_a);
  kernel(m, "tail_moments", &tail_moments, "x"_a, "table"_a, "low"_a, "high"_a, "unit"_a);
}

}  // namespace gradwire::bindings
