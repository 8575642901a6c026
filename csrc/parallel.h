// The one place with threads.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

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

// From this many elements on a piece is worked on by all threads.
constexpr std::int64_t kAlone = 131072;

// Calls f(0) .. f(count - 1), each in the thread that is free next; `elements` is how many all of them have together.
// What f throws first is thrown again when all of them are done.
template <class F>
void parallel_each(std::int64_t count, std::int64_t elements, int threads, const F& f) {
  if (count <= 1 || elements < kSerialBelow || threads <= 1 || in_forked_child()) {
    for (std::int64_t i = 0; i < count; ++i) f(i);
    return;
  }
  std::exception_ptr thrown;
  std::mutex first;
#if defined(_OPENMP)
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
#endif
  for (std::int64_t i = 0; i < count; ++i) {
    try {
      f(i);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(first);
      if (!thrown) thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

// Zeros over what may be a large part of a capacity.
inline void parallel_zero(std::uint8_t* p, std::int64_t count, int threads) {
  parallel_for(count, 4096, threads,
               [&](std::int64_t begin, std::int64_t end, int) { std::memset(p + begin, 0, std::size_t(end - begin)); });
}

// Waits for a value that another thread is about to write: at first without giving up the CPU, since on a busy machine
// it would not come back for milliseconds.
inline std::int64_t await(const std::atomic<std::int64_t>& value, std::int64_t unknown) {
  constexpr int kPatience = 2000;
  for (int tries = 0;; ++tries) {
    const std::int64_t found = value.load(std::memory_order_acquire);
    if (found != unknown) return found;
    if (tries >= kPatience) std::this_thread::yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

// Lays end to end what parts of `size` elements become, in one pass over memory: make(begin, end) says how many bytes a
// part takes, and write(begin, end, first byte, bytes) follows while what it needs is in the cache. A part waits for the
// sizes of those before it: they are taken in order, so each of them has a thread already. Returns the number of bytes.
template <class Make, class Write>
std::int64_t parallel_append(std::int64_t n, std::int64_t size, int threads, const Make& make, const Write& write) {
  constexpr std::int64_t kUnknown = 0;
  const std::int64_t parts = (n + size - 1) / size, range = range_size(n, size, threads);
  std::vector<std::atomic<std::int64_t>> ends(std::size_t(parts + 1));  // plus one
  std::atomic<std::int64_t> next{0};
  ends[0].store(1);
  parallel_tasks(int(std::max<std::int64_t>((n + range - 1) / range, 1)), [&](int) {
    for (std::int64_t part = next.fetch_add(1); part < parts; part = next.fetch_add(1)) {
      const std::int64_t begin = part * size, end = std::min(begin + size, n), bytes = make(begin, end);
      const std::int64_t before = await(ends[std::size_t(part)], kUnknown);
      ends[std::size_t(part + 1)].store(before + bytes, std::memory_order_release);
      write(begin, end, before - 1, bytes);
    }
  });
  return ends[std::size_t(parts)].load() - 1;
}

}  // namespace gradwire
