#include "entries.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "dispatch.h"

namespace gradwire {

namespace {

// The entries of one segment before it is known where they belong.
struct Segment {
  static constexpr std::int64_t kRoom = kMarkSegment + 16;
  float values[kRoom];
  std::uint16_t indices[kRoom];
  std::int64_t count;

  Taken empty() {
    count = 0;
    return {values, indices, &count};
  }

  void append(const EntryList& to, std::int64_t first) const {
    const std::int64_t there = std::clamp<std::int64_t>(to.room - first, 0, count);
    if (there == 0) return;
    std::memcpy(to.values + first, values, sizeof(float) * std::size_t(there));
    std::memcpy(to.indices + first, indices, sizeof(std::uint16_t) * std::size_t(there));
  }
};

// Memory that a thread keeps: fetching fresh pages takes longer than filling them.
Segment& scratch(int which) {
  thread_local std::unique_ptr<Segment> segments[2];
  if (!segments[which]) segments[which] = std::make_unique<Segment>();
  return *segments[which];
}

}  // namespace

void take_beyond(const Beyond& b, std::int64_t n, int threads) {
  count_call();
  const KernelTable& kernels = active();
  parallel_append(
      n, kMarkSegment, threads,
      [&](std::int64_t begin, std::int64_t end) {
        Segment& found = scratch(0);
        kernels.take_beyond({b.x, b.high, b.low, found.empty()}, begin, end);
        b.entries.counts[begin / kMarkSegment] = std::int32_t(found.count);
        return found.count;
      },
      [&](std::int64_t, std::int64_t, std::int64_t first, std::int64_t) { scratch(0).append(b.entries, first); });
}

void take_drawn(const Drawn& d, std::int64_t n, int threads) {
  count_call();
  const KernelTable& kernels = active();
  constexpr int kHalf = 32;  // bits for each of two numbers
  parallel_append(
      n, kMarkSegment, threads,
      [&](std::int64_t begin, std::int64_t end) {
        Segment &whole = scratch(0), &drawn = scratch(1);
        kernels.take_drawn({d.x, d.s, d.key, d.step, whole.empty(), drawn.empty()}, begin, end);
        d.whole.counts[begin / kMarkSegment] = std::int32_t(whole.count);
        d.drawn.counts[begin / kMarkSegment] = std::int32_t(drawn.count);
        return whole.count | drawn.count << kHalf;
      },
      [&](std::int64_t, std::int64_t, std::int64_t first, std::int64_t) {
        scratch(0).append(d.whole, first & ((std::int64_t{1} << kHalf) - 1));
        scratch(1).append(d.drawn, first >> kHalf);
      });
}

}  // namespace gradwire
