// Which SIMD target runs, and the call of one of its kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "family.h"
#include "parallel.h"

namespace gradwire {

// The targets this CPU has, best first.
std::vector<std::string> targets();

// The name of the target in use: the best one until set_target().
const char* active_target();

// Throws std::invalid_argument for a name that is not in targets(). Not meant to be called while kernels run.
void set_target(const std::string& name);

// How many kernels of this target were started since the program began.
std::int64_t calls(const std::string& name);

void count_call();

// Runs a kernel over [0, n) in chunks that begin at multiples of `align`.
template <class Args>
void run(const Kernel<Args>& kernel, const Args& args, std::int64_t n, std::int64_t align, int threads) {
  const auto function = kernel.of[active_place()];
  count_call();
  parallel_for(n, align, threads,
               [&](std::int64_t begin, std::int64_t end, std::int64_t) { function(args, begin, end); });
}

// The same, the last elements of each thread first: what a pass over all of them left in the caches is read from there.
template <class Args>
void run_backwards(void (*function)(const Args&, std::int64_t, std::int64_t), const Args& args, std::int64_t n,
                   std::int64_t align, int threads) {
  constexpr std::int64_t kPart = 65536;
  count_call();
  const auto backwards = [&](std::int64_t begin, std::int64_t end, std::int64_t) {
    const std::int64_t part = std::max(kPart / align, std::int64_t{1}) * align;
    for (std::int64_t parts = (end - begin + part - 1) / part; parts > 0; --parts)
      function(args, begin + (parts - 1) * part, std::min(begin + parts * part, end));
  };
  parallel_for(n, align, threads, backwards, Order::kBackwards);
}

template <class Args>
void run_backwards(const Kernel<Args>& kernel, const Args& args, std::int64_t n, std::int64_t align, int threads) {
  run_backwards(kernel.of[active_place()], args, n, align, threads);
}

}  // namespace gradwire
