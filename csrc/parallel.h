// The one place with threads.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace gradwire {

// Below this many elements starting the threads takes longer than the work.
constexpr std::int64_t kSerialBelow = 32768;

// The process that loaded the extension.
inline const pid_t kOwner = getpid();

// Neither libgomp nor its threads survive a fork: a child that starts a parallel region waits for ever, also where
// only torch had threads before the fork.
inline bool in_forked_child() { return getpid() != kOwner; }

// The size of the ranges that [0, n) is cut into: one a thread, a multiple of `align`.
inline std::int64_t range_size(std::int64_t n, std::int64_t align, int threads) {
#if defined(_OPENMP)
  if (n < kSerialBelow || threads <= 1 || in_forked_child()) return std::max<std::int64_t>(n, 1);
  const std::int64_t share = std::max((n + threads - 1) / threads, kSerialBelow / 2);
  return (share + align - 1) / align * align;
#else
  static_cast<void>(align), static_cast<void>(threads);
  return std::max<std::int64_t>(n, 1);
#endif
}

// Calls f(0) .. f(count - 1), a thread each. The count is that of ranges, so it is 1 where there must be no threads.
template <class F>
void parallel_tasks(int count, const F& f) {
  if (count == 1) return f(0);
#if defined(_OPENMP)
#pragma omp parallel for num_threads(count) schedule(static, 1)
#endif
  for (int i = 0; i < count; ++i) f(i);
}

// Calls f(begin, end, number of the range) for every range of range_size() elements.
template <class F>
void parallel_for(std::int64_t n, std::int64_t align, int threads, const F& f) {
  const std::int64_t size = range_size(n, align, threads);
  parallel_tasks(int((n + size - 1) / size), [&](int i) { f(i * size, std::min((i + 1) * size, n), i); });
}

}  // namespace gradwire
