// The elements that a seed chooses, on a CPU: the operations of ops.py; _draws.py says which elements these are.
#if !defined(GRADWIRE_TARGET)

#include <algorithm>
#include <cmath>
#include <cstring>

#include "operation.h"
#include "philox.h"

namespace gradwire::operations {

namespace {

// k units of `run` neighbours among n elements, one in each of k strata; see _draws.py.
struct Choice {
  std::uint32_t seed;
  std::int64_t k, run, n;
};

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

// Calls f(j, unit) for the unit of each stratum j of [begin, end); `touched` is the tensor that f looks at.
template <class F>
void for_each(const Choice& c, const float* touched, std::int64_t begin, std::int64_t end, const F& f) {
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
}

Choice choice(Size seed, Size k, Size run, Size n) {
  if (run < 1 || k < 0 || k > (n + run - 1) / run) throw std::invalid_argument("there are not as many units");
  return {std::uint32_t(seed), k, run, n};
}

constexpr int kHeader = 5;

// A 1 that counts the ranks, and the bytes of the seed, the lowest first.
void write_seed(std::uint32_t seed, float* header) {
  header[0] = 1;
  for (int i = 1; i < kHeader; ++i) header[i] = float(seed >> 8 * (i - 1) & 255);
}

// Of numbers that make no sense, some seed.
std::uint32_t read_seed(const std::uint8_t* row) {
  float header[kHeader];
  std::memcpy(header, row, sizeof header);
  std::uint32_t seed = 0;
  for (int i = 1; i < kHeader; ++i) {
    const float value = std::nearbyint(header[i] / header[0]);
    const float byte = std::isfinite(value) ? std::clamp(value, 0.0f, 255.0f) : 0.0f;
    seed |= std::uint32_t(byte) << 8 * (i - 1);
  }
  return seed;
}

void randomk_encode(const float* x, Maybe<float> values, float* header, Maybe<const Size> seed, Size run, bool scaled,
                    double scale, Size k, Size n, int threads) {
  count_call();
  write_seed(std::uint32_t(*seed.data), header);
  const Choice c = choice(*seed.data, k / run, run, n);
  const auto take = [&, factor = float(scale)](Size j, Unit unit) {
    float* const to = values.data + j * run;
    const Size there = std::min(run, n - unit.place);
    for (Size i = 0; i < there; ++i) {
      const float value = x[unit.place + i] * factor;
      to[i] = scaled ? value * float(unit.size) : value;
    }
    std::fill(to + there, to + run, 0.0f);
  };
  parallel_for(c.k, kBatch, threads, [&](Size begin, Size end, Size) { for_each(c, x, begin, end, take); });
}
GRADWIRE_OPERATION(randomk_encode)

void randomk_add_decoded(Column values, Column header, float* out, Size run, double scale, Size ranks, Size k, Size n,
                         int threads) {
  count_call();
  // A pass for each rank, as two of them may choose the same element.
  Size w = 0;
  Choice c = {};
  const auto read = [&] { c = choice(read_seed(header.data + w * header.stride), k / run, run, n); };
  if (ranks > 0) read();
  const Size size = chunk_size(k / run, kBatch, threads), chunks = ranks > 0 ? chunk_count(k / run, size) : 0;
  const auto work = [&, factor = float(scale)](Size i) {
    const Choice here = c;
    const std::uint8_t* const row = values.data + w * values.stride;
    for_each(here, out, i * size, std::min((i + 1) * size, here.k), [=](Size j, Unit unit) {
      const Size there = std::min(run, n - unit.place);
      for (Size e = 0; e < there; ++e) {
        float value;
        std::memcpy(&value, row + 4 * (j * run + e), sizeof value);
        out[unit.place + e] = out[unit.place + e] + factor * value;
      }
    });
  };
  const auto next = [&] {
    if (++w == ranks) return Size{0};
    read();
    return chunks;
  };
  parallel_passes(chunks, threads, work, next);
}
GRADWIRE_OPERATION(randomk_add_decoded)

}  // namespace

}  // namespace gradwire::operations

#endif
