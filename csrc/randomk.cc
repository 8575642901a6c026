#include <algorithm>
#include <cstring>

#include "dispatch.h"
#include "philox.h"
#include "places.h"

namespace gradwire {

namespace {

constexpr std::int64_t kBatch = 1024;  // words drawn at a time, a multiple of four
constexpr std::int64_t kAhead = 16;    // units fetched before they are needed

struct Unit {
  std::int64_t place, size;  // its first element; units in its stratum
};

// The units that the strata [first, last) choose.
void draw(const Choice& c, std::int64_t first, std::int64_t last, Unit* chosen) {
  const std::int64_t units = (c.n + c.run - 1) / c.run;
  std::uint32_t words[kBatch];
  kernels::philox({words, c.seed, 0, std::uint64_t(first / 4)}, 0, kBatch);
  std::int64_t edge = first * units / c.k, rest = first * units % c.k;
  for (std::int64_t j = 0; j < last - first; ++j) {
    // Edge j is floor(j * units / k); what the division leaves is carried along.
    rest += units % c.k;
    const std::int64_t size = units / c.k + (rest >= c.k);
    if (rest >= c.k) rest -= c.k;
    chosen[j] = {(edge + std::int64_t(std::uint64_t(words[j]) * std::uint64_t(size) >> 32)) * c.run, size};
    edge += size;
  }
}

// Calls f(j, unit) for the unit of each stratum j; `touched` is the tensor that f looks at.
template <class F>
void for_each(const Choice& c, const float* touched, int threads, const F& f) {
  parallel_for(c.k, kBatch, threads, [&](std::int64_t begin, std::int64_t end, int) {
    Unit chosen[kBatch];
    for (std::int64_t first = begin; first < end; first += kBatch) {
      const std::int64_t count = std::min(kBatch, end - first);
      draw(c, first, first + count, chosen);
      for (std::int64_t j = 0; j < std::min(kAhead, count); ++j) __builtin_prefetch(touched + chosen[j].place, 1);
      for (std::int64_t j = 0; j < count; ++j) {
        if (j + kAhead < count) __builtin_prefetch(touched + chosen[j + kAhead].place, 1);
        f(first + j, chosen[j]);
      }
    }
  });
}

}  // namespace

void randomk_encode(const RandomkEncode& r, int threads) {
  count_call();
  for_each(r, r.x, threads, [&](std::int64_t j, Unit unit) {
    float* const to = r.values + j * r.run;
    const std::int64_t there = std::min(r.run, r.n - unit.place);
    for (std::int64_t i = 0; i < there; ++i) {
      const float value = r.x[unit.place + i] * r.scale;
      to[i] = r.scaled ? value * float(unit.size) : value;
    }
    std::fill(to + there, to + r.run, 0.0f);
  });
}

void randomk_add_decoded(const RandomkAddDecoded& r, int threads) {
  count_call();
  for_each(r, r.out, threads, [&](std::int64_t j, Unit unit) {
    const std::int64_t there = std::min(r.run, r.n - unit.place);
    for (std::int64_t i = 0; i < there; ++i) {
      float value;
      std::memcpy(&value, r.values + 4 * (j * r.run + i), sizeof value);
      r.out[unit.place + i] = r.out[unit.place + i] + r.scale * value;
    }
  });
}

}  // namespace gradwire
