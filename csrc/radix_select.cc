#include "radix_select.h"

#include <algorithm>
#include <cstring>

#include "parallel.h"

namespace gradwire {

namespace {

constexpr int kDigit = 11;
constexpr std::uint32_t kBins = 1u << kDigit;

// Neighbours are counted in different places: equal keys in a row would otherwise wait for each other's sum.
constexpr int kWays = 4;

std::uint32_t key_at(const Span& span, std::int64_t i) {
  std::uint32_t word;
  std::memcpy(&word, static_cast<const char*>(span.words) + i * std::int64_t(sizeof word), sizeof word);
  return word & 0x7fffffff;
}

void count_digits(const Span& span, std::uint32_t low, int shift, std::uint32_t bins, std::int64_t* counts) {
  std::uint32_t ways[kWays][kBins + 1] = {};  // the last bin is for keys outside
  const auto count = [&](std::uint32_t* way, std::int64_t i) {
    ++way[std::min((key_at(span, i) - low) >> shift, bins)];
  };
  std::int64_t i = 0;
  for (; span.count - i >= kWays; i += kWays)
    for (int way = 0; way < kWays; ++way) count(ways[way], i + way);
  for (; i < span.count; ++i) count(ways[0], i);
  for (std::uint32_t b = 0; b < bins; ++b) {
    counts[b] = 0;
    for (const auto& way : ways) counts[b] += way[b];
  }
}

}  // namespace

std::vector<std::int64_t> count_equal(const std::vector<Span>& spans, std::uint32_t key) {
  std::vector<std::int64_t> equal(spans.size());
  parallel_tasks(int(spans.size()), [&](int i) {
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < spans[i].count; ++j) count += key_at(spans[i], j) == key;
    equal[i] = count;
  });
  return equal;
}

Selection radix_select(const std::vector<Span>& spans, std::int64_t k, std::uint32_t low, int bits) {
  const std::size_t size = spans.size();
  Selection s = {low, std::vector<std::int64_t>(size), std::vector<std::int64_t>(size)};
  std::vector<std::int64_t> counts(size * kBins);
  for (int shift = bits; shift > 0;) {
    const std::uint32_t bins = 1u << std::min(kDigit, shift);
    shift = std::max(0, shift - kDigit);
    parallel_tasks(int(size), [&](int i) { count_digits(spans[i], s.key, shift, bins, &counts[i * kBins]); });
    std::uint32_t digit = bins - 1;
    for (;; --digit) {
      std::int64_t here = 0;
      for (std::size_t r = 0; r < size; ++r) here += s.equal[r] = counts[r * kBins + digit];
      if (k <= here || digit == 0) break;
      k -= here;
      for (std::size_t r = 0; r < size; ++r) s.larger[r] += s.equal[r];
    }
    s.key += digit << shift;
  }
  return s;
}

}  // namespace gradwire
