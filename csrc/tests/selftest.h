// What the parts of the self-test share: random buffers, and a kernel on them with two targets.
#pragma once

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "dispatch.h"

namespace gradwire::selftest {

constexpr std::int64_t kRanks = 3;
constexpr int kGuard = 64;

inline std::mt19937 generator(1);

// What a kernel may read and write: arrays of n elements, payloads for kRanks ranks, and room beyond that it must not
// touch.
struct Buffers {
  std::vector<float> a, b, c;
  std::vector<std::uint8_t> bytes;
  std::vector<std::int32_t> status{0};

  explicit Buffers(std::int64_t n)
      : a(values(n)), b(values(n)), c(values(n)), bytes(std::size_t(kRanks * row_bytes(n) + kGuard)) {
    for (std::uint8_t& byte : bytes) byte = std::uint8_t(generator());
  }

  static std::int64_t row_bytes(std::int64_t n) { return 4 * n + kGuard; }

  Rows rows(std::int64_t n) const { return {bytes.data(), kRanks, row_bytes(n)}; }

  // A third are arbitrary bits: NaN, infinity, subnormals, huge values.
  static std::vector<float> values(std::int64_t n) {
    std::vector<float> x(std::size_t(n + kGuard));
    std::normal_distribution<float> normal;
    for (float& value : x) {
      const std::uint32_t word = std::uint32_t(generator());
      value = normal(generator);
      if (word % 3 == 0) std::memcpy(&value, &word, sizeof value);
    }
    return x;
  }
};

// Which of two NaNs a sum becomes is not laid down: here b is none where a is one. For codes that hold bits of it.
inline void leave_one_nan(Buffers& x) {
  for (std::size_t i = 0; i < x.a.size(); ++i)
    if (x.a[i] != x.a[i] && x.b[i] != x.b[i]) x.b[i] = 1.0f;
}

inline bool same(const std::vector<float>& x, const std::vector<float>& y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool nan = x[i] != x[i] && y[i] != y[i];
    if (!nan && std::memcmp(&x[i], &y[i], sizeof(float)) != 0) return false;
  }
  return true;
}

inline bool same(const Buffers& x, const Buffers& y) {
  return same(x.a, y.a) && same(x.b, y.b) && same(x.c, y.c) && x.bytes == y.bytes && x.status == y.status;
}

inline int failures = 0;

// Calls `function` on equal buffers with the scalar target and with `target`.
template <class Function>
void compare(const std::string& target, const char* name, const Function& function) {
  for (const std::int64_t n : {0, 1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 255, 256, 257, 1000, 100003}) {
    const Buffers start(n);
    Buffers expected = start, actual = start;
    set_target("scalar");
    function(expected, n);
    set_target(target);
    function(actual, n);
    if (same(expected, actual)) continue;
    std::printf("%s %s differs from scalar at n = %lld\n", target.c_str(), name, static_cast<long long>(n));
    ++failures;
  }
}

// One kernel; `arguments` makes its Args from the buffers.
template <class Args, class Make>
void check(const std::string& target, const char* name, const Kernel<Args>& kernel, const Make& arguments) {
  compare(target, name, [&](Buffers& x, std::int64_t n) { kernel(arguments(x, n), 0, n); });
}

// The comparisons of all families: a list that is made before main() begins.
struct Suite {
  void (*check)(const std::string& target);
  const Suite* next;

  static inline const Suite* first = nullptr;
  explicit Suite(void (*check)(const std::string& target)) : check(check), next(first) { first = this; }
};

}  // namespace gradwire::selftest

#define GRADWIRE_SELFTEST_OF(family)                                                    \
  static void selftest_of_##family(const std::string& target);                         \
  static const ::gradwire::selftest::Suite suite_of_##family(&selftest_of_##family);   \
  static void selftest_of_##family(const std::string& target)
