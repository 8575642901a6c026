#include <algorithm>
#include <cstring>

#include "dispatch.h"
#include "places.h"

namespace gradwire {

namespace {

constexpr std::int64_t kBatch = 1024;  // words drawn at a time, a multiple of four

// Calls f(j, first element of the unit that stratum j chooses, units in the stratum).
template <class F>
void for_each(const Choice& c, const F& f) {
  const std::int64_t units = (c.n + c.run - 1) / c.run, whole = c.k > 0 ? units / c.k : 0;
  std::uint32_t words[kBatch];
  std::int64_t edge = 0, rest = 0;
  for (std::int64_t first = 0; first < c.k; first += kBatch) {
    active().philox({words, c.seed, 0, std::uint64_t(first / 4)}, 0, kBatch);
    for (std::int64_t j = first; j < std::min(first + kBatch, c.k); ++j) {
      // Edge j is floor(j * units / k); what the division leaves is carried along.
      rest += units % c.k;
      const std::int64_t size = whole + (rest >= c.k);
      if (rest >= c.k) rest -= c.k;
      f(j, (edge + std::int64_t(std::uint64_t(words[j - first]) * std::uint64_t(size) >> 32)) * c.run, size);
      edge += size;
    }
  }
}

}  // namespace

void randomk_encode(const RandomkEncode& r) {
  count_call();
  for_each(r, [&](std::int64_t j, std::int64_t place, std::int64_t size) {
    float* const to = r.values + j * r.run;
    const std::int64_t there = std::min(r.run, r.n - place);
    for (std::int64_t i = 0; i < there; ++i) {
      const float value = r.x[place + i] * r.scale;
      to[i] = r.scaled ? value * float(size) : value;
    }
    std::fill(to + there, to + r.run, 0.0f);
  });
}

void randomk_add_decoded(const RandomkAddDecoded& r) {
  count_call();
  for_each(r, [&](std::int64_t j, std::int64_t place, std::int64_t) {
    const std::int64_t there = std::min(r.run, r.n - place);
    for (std::int64_t i = 0; i < there; ++i) {
      float value;
      std::memcpy(&value, r.values + 4 * (j * r.run + i), sizeof value);
      r.out[place + i] = r.out[place + i] + r.scale * value;
    }
  });
}

}  // namespace gradwire
