#include "dispatch.h"

#include <atomic>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gradwire {

namespace {

struct Target {
  const char* name;
  bool supported;
  std::atomic<std::int64_t> calls{0};
};

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports() knows this name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") && has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2");
}
#endif

// Best first, as in GRADWIRE_KERNEL; scalar is always the last.
Target all[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512()},
    {"avx2", has_avx2()},
#elif defined(__aarch64__)
    {"neon", true},
#endif
    {"scalar", true},
};

Target* best() {
  for (Target& target : all)
    if (target.supported) return &target;
  return nullptr;
}

std::atomic<Target*> chosen{best()};

Target& find(const std::string& name) {
  for (Target& target : all)
    if (target.supported && name == target.name) return target;
  std::string allowed;
  for (const std::string& known : targets()) allowed += (allowed.empty() ? "" : ", ") + known;
  throw std::invalid_argument("the SIMD target must be one of " + allowed + " on this CPU, got '" + name + "'");
}

}  // namespace

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const Target& target : all)
    if (target.supported) names.push_back(target.name);
  return names;
}

const char* active_target() { return chosen.load(std::memory_order_relaxed)->name; }

int active_place() { return int(chosen.load(std::memory_order_relaxed) - all); }

void set_target(const std::string& name) { chosen.store(&find(name), std::memory_order_relaxed); }

std::int64_t calls(const std::string& name) { return find(name).calls.load(std::memory_order_relaxed); }

void count_call() { chosen.load(std::memory_order_relaxed)->calls.fetch_add(1, std::memory_order_relaxed); }

}  // namespace gradwire
