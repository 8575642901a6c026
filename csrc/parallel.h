// Work that is shared out over threads.
//
// Invariants:
//   * A tensor is cut into chunks, and any thread takes any of them. The result of a chunk is kept by the number of the
//     chunk, and results are combined in that order, so that the bits depend neither on the threads nor on how many
//     there are.
//   * An operation opens one parallel region for any number of passes: the thread that finishes the last chunk of a
//     pass prepares the next one, and nobody waits for a thread that holds no chunk.
//   * A thread that must wait goes to sleep soon.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

namespace gradwire {

// Below this many elements starting the threads takes longer than the work.
constexpr std::int64_t kSerialBelow = 32768;

// Elements of the smallest chunk, 32 KiB of float32, and chunks for each thread at the most. To begin one costs little
// beside its work, a twentieth of a pass over 2^20 elements where there are twice as many; and what a late thread holds
// is a small part of the whole.
constexpr std::int64_t kSmallestChunk = 8192, kChunksEach = 8;

// The process that loaded the extension.
inline const pid_t kOwner = getpid();

// Neither libgomp nor its threads survive a fork: a child that starts a parallel region waits for ever, also where
// only torch had threads before the fork.
inline bool in_forked_child() { return getpid() != kOwner; }

// Whether work on n elements may be shared out at all.
inline bool is_shared(std::int64_t n, int threads) {
#if defined(_OPENMP)
  return n >= kSerialBelow && threads > 1 && !in_forked_child();
#else
  static_cast<void>(n), static_cast<void>(threads);
  return false;
#endif
}

// The size of the chunks that [0, n) is cut into, a multiple of `align`; all of it where there must be no threads.
inline std::int64_t chunk_size(std::int64_t n, std::int64_t align, int threads) {
  if (!is_shared(n, threads)) return std::max<std::int64_t>(n, 1);
  const std::int64_t size = std::max(n / (threads * kChunksEach), kSmallestChunk);
  return (size + align - 1) / align * align;
}

inline std::int64_t chunk_count(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// A number that one thread writes and others wait for.
class Signal {
 public:
  std::uint32_t get() const { return value_.load(std::memory_order_acquire); }

  // Adds to the number and wakes who sleeps.
  void add(std::uint32_t count);

  // Returns when the number is `least` or more. At first without giving up the processor, as an answer is mostly near;
  // then asleep, so that the thread that is waited for can run in this one's place.
  void wait_for(std::uint32_t least);

 private:
  std::atomic<std::uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
};

// The order in which the chunks of a thread are taken. Backwards, what the pass before left in the caches comes first;
// to and fro, it does so in the second pass. One by one, all threads take the lowest chunk that is left.
enum class Order { kForwards, kBackwards, kToAndFro, kOneByOne };

// What the threads of one region do: `work(chunk)` for every chunk of a pass, whoever is free, and after the last one
// `next()`, which prepares another pass and returns its number of chunks, or 0.
struct Passes {
  void (*work)(const void* context, std::int64_t chunk);
  std::int64_t (*next)(const void* context);
  const void* context;
  Order order;
};

// Runs passes of which the first has `count` chunks, in one region of `threads` threads.
void run_passes(std::int64_t count, int threads, const Passes& passes);

// The same with functions. Each thread begins with chunks of its own, side by side, and then takes those of others.
template <class Work, class Next>
void parallel_passes(std::int64_t count, int threads, const Work& work, const Next& next,
                     Order order = Order::kForwards) {
  struct Context {
    const Work& work;
    const Next& next;
  } context = {work, next};
  run_passes(count, threads,
             {[](const void* c, std::int64_t chunk) { static_cast<const Context*>(c)->work(chunk); },
              [](const void* c) -> std::int64_t { return static_cast<const Context*>(c)->next(); }, &context, order});
}

// Calls f(0) .. f(count - 1). The count is that of chunks, so it is 1 where there must be no threads.
template <class F>
void parallel_chunks(std::int64_t count, int threads, const F& f, Order order = Order::kForwards) {
  if (count == 1) return f(0);
  parallel_passes(count, threads, f, [] { return 0; }, order);
}

// Calls f(begin, end, number of the chunk) for every chunk of chunk_size() elements.
template <class F>
void parallel_for(std::int64_t n, std::int64_t align, int threads, const F& f, Order order = Order::kForwards) {
  const std::int64_t size = chunk_size(n, align, threads);
  parallel_chunks(
      chunk_count(n, size), threads, [&](std::int64_t i) { f(i * size, std::min((i + 1) * size, n), i); }, order);
}

// Calls first(begin, end, chunk) for every chunk of chunk_size() elements, then between(), and then second(...)
// likewise: what needs something of the whole tensor before it can begin.
template <class First, class Between, class Second>
void parallel_twice(std::int64_t n, std::int64_t align, int threads, const First& first, const Between& between,
                    const Second& second) {
  const std::int64_t size = chunk_size(n, align, threads), count = chunk_count(n, size);
  bool again = false;
  const auto work = [&](std::int64_t i) {
    const std::int64_t begin = i * size, end = std::min(begin + size, n);
    again ? second(begin, end, i) : first(begin, end, i);
  };
  const auto next = [&] {
    if (again) return std::int64_t{0};
    again = true, between();
    return count;
  };
  if (count > 0)
    parallel_passes(count, threads, work, next, Order::kToAndFro);
  else
    between();
}

// From this many elements on a piece is worked on by all threads.
constexpr std::int64_t kAlone = 131072;

// Calls f(0) .. f(count - 1), each in the thread that is free next; `elements` is how many all of them have together.
// What f throws first is thrown again when all of them are done.
template <class F>
void parallel_each(std::int64_t count, std::int64_t elements, int threads, const F& f) {
  std::exception_ptr thrown;
  std::mutex first;
  const auto one = [&](std::int64_t i) {
    try {
      f(i);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(first);
      if (!thrown) thrown = std::current_exception();
    }
  };
  parallel_passes(count, is_shared(elements, threads) ? threads : 1, one, [] { return 0; });
  if (thrown) std::rethrow_exception(thrown);
}

// Zeros over what may be a large part of a capacity.
inline void parallel_zero(std::uint8_t* p, std::int64_t count, int threads) {
  parallel_for(count, 4096, threads, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
    std::memset(p + begin, 0, std::size_t(end - begin));
  });
}

// Lays end to end what parts of `size` elements become, in one pass over memory: make(begin, end) says how many bytes a
// part takes, and write(begin, end, first byte, bytes) follows while what it needs is in the cache. A part waits for
// the sizes of those before it: they are taken in order, so each of them has a thread already. Returns the number of
// bytes.
template <class Make, class Write>
std::int64_t parallel_append(std::int64_t n, std::int64_t size, int threads, const Make& make, const Write& write) {
  const std::int64_t parts = chunk_count(n, size);
  std::vector<std::int64_t> ends(std::size_t(parts + 1));
  Signal known;  // of how many parts the end is known
  const auto append = [&](std::int64_t part) {
    const std::int64_t begin = part * size, end = std::min(begin + size, n), bytes = make(begin, end);
    known.wait_for(std::uint32_t(part));
    const std::int64_t first = ends[std::size_t(part)];
    ends[std::size_t(part + 1)] = first + bytes;
    known.add(1);
    write(begin, end, first, bytes);
  };
  parallel_passes(parts, is_shared(n, threads) ? threads : 1, append, [] { return 0; }, Order::kOneByOne);
  return ends.back();
}

// What tests look at.

// Parallel regions since the program began.
std::int64_t region_count();

// The chunks that each thread took in the last region in which one was held.
std::vector<std::int64_t> chunks_taken();

// From now on the thread of this number comes to each region when all chunks are taken; -1: none does.
void hold_thread(int number);

// Whether work is done by one thread for a while after a region that took longer than that would have; true at first.
void set_retreat(bool retreat);

}  // namespace gradwire
