#include <algorithm>
#include <array>
#include <vector>

#include "dispatch.h"
#include "entropy.h"

namespace gradwire {

namespace {

// Neighbours count in tables of their own: where they are equal one would wait for the other.
constexpr std::int64_t kTables = 4;

using Counts = std::array<std::int64_t, std::size_t(kTables * kSymbols)>;

void count(const std::uint8_t* symbols, std::int64_t begin, std::int64_t end, Counts& counts) {
  std::int64_t i = begin;
  for (; end - i >= kTables; i += kTables)
    for (std::int64_t j = 0; j < kTables; ++j) ++counts[std::size_t(j * kSymbols + symbols[i + j])];
  for (; i < end; ++i) ++counts[symbols[i]];
}

}  // namespace

void byte_counts(const std::uint8_t* symbols, std::int64_t* counts, std::int64_t n, int threads) {
  count_call();
  const std::int64_t size = range_size(n, 1, threads);
  std::vector<Counts> found(std::size_t((n + size - 1) / size));
  parallel_for(n, 1, threads, [&](std::int64_t begin, std::int64_t end, int range) {
    count(symbols, begin, end, found[std::size_t(range)]);
  });
  std::fill_n(counts, kSymbols, 0);
  for (const Counts& one : found)
    for (std::size_t i = 0; i < one.size(); ++i) counts[i % kSymbols] += one[i];
}

}  // namespace gradwire
