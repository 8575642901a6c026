#include "parallel.h"

#include <chrono>
#include <limits>
#include <memory>
#include <thread>

#if defined(_OPENMP)
#include <omp.h>
#endif

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace gradwire {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// How often a thread looks before it sleeps: some 90 microseconds, more than chunks of equal size differ by.
constexpr int kPatience = 4000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Until the number is another one, or earlier. A spinning thread would keep the processor from the one it waits for.
void sleep_while(const std::atomic<std::uint32_t>& value, std::uint32_t found) {
#if defined(__linux__)
  syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, found, nullptr, nullptr, 0);
#else
  static_cast<void>(value), static_cast<void>(found);
  std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

void wake(const std::atomic<std::uint32_t>& value) {
#if defined(__linux__)
  syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
#else
  static_cast<void>(value);
#endif
}

}  // namespace

void Signal::add(std::uint32_t count) {
  value_.fetch_add(count);
  if (sleepers_.load() > 0) wake(value_);
}

void Signal::wait_for(std::uint32_t least) {
  for (int tries = 0; tries < kPatience; ++tries) {
    if (get() >= least) return;
    pause();
  }
  sleepers_.fetch_add(1);
  for (std::uint32_t found = value_.load(); found < least; found = value_.load()) sleep_while(value_, found);
  sleepers_.fetch_sub(1);
}

namespace {

// For tests.
std::atomic<std::int64_t> regions{0};
std::atomic<int> held{-1};
std::atomic<bool> may_retreat{true};
std::vector<std::int64_t> last_taken;

bool is_backwards(Order order, bool fro) { return order == Order::kBackwards || (order == Order::kToAndFro && fro); }

void run_serially(std::int64_t count, const Passes& p) {
  for (bool fro = false; count > 0; count = p.next(p.context), fro = !fro) {
    if (is_backwards(p.order, fro))
      for (std::int64_t i = count; i > 0; --i) p.work(p.context, i - 1);
    else
      for (std::int64_t i = 0; i < count; ++i) p.work(p.context, i);
  }
}

// The chunks [first, after) that nobody has taken yet, in one word, which both ends are taken from.
class Chunks {
 public:
  void fill(std::uint64_t first, std::uint64_t after) {
    word_.store(first | after << 32, std::memory_order_release);
  }

  // The number of a chunk, or -1.
  std::int64_t take(bool last) {
    std::uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      const std::uint64_t first = word & 0xffffffff, after = word >> 32;
      if (first >= after) return -1;
      const std::uint64_t rest = last ? first | (after - 1) << 32 : (first + 1) | after << 32;
      if (word_.compare_exchange_weak(word, rest, std::memory_order_acq_rel, std::memory_order_acquire))
        return std::int64_t(last ? after - 1 : first);
    }
  }

 private:
  std::atomic<std::uint64_t> word_{0};
};

struct alignas(64) Member {
  Chunks own;
  std::int64_t taken = 0;
  double working = 0;
};

// The threads of one region.
class Team {
 public:
  Team(std::int64_t count, int size, const Passes& passes)
      : passes_(passes), size_(size), members_(new Member[std::size_t(size)]) {
    begin_pass(count);
  }

  // What each thread of the region calls, of which there may be fewer than there were asked for.
  void join(int number, int present) {
    for (;;) {
      // In this order: who finds that it has not ended yet waits for a pass whose end is still to be told.
      const std::uint32_t pass = pass_.get();
      if (held.load(std::memory_order_relaxed) == number) wait_until_ended();
      if (ended_.load(std::memory_order_acquire)) break;
      const std::int64_t done = take_all(number);
      if (done > 0 && left_.fetch_sub(done) == done)
        finish_pass();
      else
        pass_.wait_for(pass + 1);
    }
    // Whoever leaves libgomp's region last is waited for with a spinning thread: so wait for all of them here.
    if (number > 0)
      gone_.add(1);
    else
      gone_.wait_for(std::uint32_t(present - 1));
  }

  // What one thread would have taken, by those chunks whose thread was disturbed least.
  double serial_seconds() const {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < size_; ++i) {
      const Member& member = members_[std::size_t(i)];
      if (member.taken > 0) least = std::min(least, member.working / double(member.taken));
    }
    return least * double(total_);
  }

  std::vector<std::int64_t> taken() const {
    std::vector<std::int64_t> counts;
    for (int i = 0; i < size_; ++i) counts.push_back(members_[std::size_t(i)].taken);
    return counts;
  }

 private:
  void begin_pass(std::int64_t count) {
    total_ += count;
    fro_.store(!fro_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    left_.store(count);
    const bool in_order = passes_.order == Order::kOneByOne;
    for (std::int64_t i = 0; i < size_; ++i) {
      const std::int64_t first = in_order ? 0 : count * i / size_;
      const std::int64_t after = in_order ? (i == 0 ? count : 0) : count * (i + 1) / size_;
      members_[std::size_t(i)].own.fill(std::uint64_t(first), std::uint64_t(after));
    }
  }

  void finish_pass() {
    const std::int64_t count = passes_.next(passes_.context);
    if (count > 0)
      begin_pass(count);
    else
      ended_.store(true, std::memory_order_release);
    pass_.add(1);
  }

  // Chunks until there are none: first one's own, then those of others from their other end.
  std::int64_t take_all(int number) {
    const bool backwards = is_backwards(passes_.order, fro_.load(std::memory_order_relaxed));
    const bool in_order = passes_.order == Order::kOneByOne;
    Member& self = members_[std::size_t(number)];
    const Clock::time_point begin = Clock::now();
    std::int64_t done = 0;
    for (int i = 0; i < size_; ++i) {
      Chunks& from = members_[std::size_t((number + i) % size_)].own;
      const bool last = !in_order && backwards == (i == 0);
      for (std::int64_t chunk = from.take(last); chunk >= 0; chunk = from.take(last), ++done)
        passes_.work(passes_.context, chunk);
    }
    self.taken += done;
    if (done > 0) self.working += Seconds(Clock::now() - begin).count();
    return done;
  }

  // In tests, where a thread that is needed must not hang them.
  void wait_until_ended() const {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
    while (!ended_.load(std::memory_order_acquire) && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  const Passes& passes_;
  const int size_;
  const std::unique_ptr<Member[]> members_;
  std::int64_t total_ = 0;  // chunks of all passes
  std::atomic<std::int64_t> left_{0};
  std::atomic<bool> ended_{false}, fro_{true};  // not before the first pass
  Signal pass_, gone_;
};

#if defined(_OPENMP)
// A thread of the team that has no processor is late by milliseconds, and a region ends with its last thread. So who
// lost more in regions than was gained works alone for a while, and for twice as long each time that the next regions
// are a loss again: what a busy machine costs in vain is a small part of the whole. A single late thread is no reason:
// one that slept because there was nothing to do is late once, and then waits awake for the next region.
struct Retreat {
  static constexpr double kTooMuch = 20e-3, kLongest = 16;

  double lost = 0;   // seconds, less what was gained since
  double alone = 0;  // seconds of work yet to be done by one thread
  double factor = 1;

  void learn(double took, double alone_would_take) {
    lost = std::max(0.0, lost + took - alone_would_take);
    if (lost == 0) factor = 1;
    if (lost < kTooMuch) return;
    alone = factor * lost;
    factor = std::min(2 * factor, kLongest);
    lost = 0;
  }
};

thread_local Retreat retreat;
#endif

}  // namespace

void run_passes(std::int64_t count, int threads, const Passes& passes) {
#if defined(_OPENMP)
  if (count <= 1 || threads <= 1 || in_forked_child()) return run_serially(count, passes);
  const bool learning = may_retreat.load(std::memory_order_relaxed);
  const Clock::time_point begin = Clock::now();
  const auto taken = [&] { return Seconds(Clock::now() - begin).count(); };
  if (learning && retreat.alone > 0) {
    run_serially(count, passes);
    retreat.alone -= taken();
    return;
  }
  Team team(count, threads, passes);
  regions.fetch_add(1, std::memory_order_relaxed);
#pragma omp parallel num_threads(threads)
  team.join(omp_get_thread_num(), omp_get_num_threads());
  if (learning) retreat.learn(taken(), team.serial_seconds());
  if (held.load(std::memory_order_relaxed) >= 0) last_taken = team.taken();
#else
  static_cast<void>(threads);
  run_serially(count, passes);
#endif
}

std::int64_t region_count() { return regions.load(std::memory_order_relaxed); }

std::vector<std::int64_t> chunks_taken() { return last_taken; }

void hold_thread(int number) { held.store(number); }

void set_retreat(bool retreat) { may_retreat.store(retreat); }

}  // namespace gradwire
