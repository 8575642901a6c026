// The k-th largest of many 31-bit keys, exactly, by counting: 11 bits at a time, from the top.
#pragma once

#include <cstdint>
#include <vector>

namespace gradwire {

// 32-bit words whose low 31 bits are keys: the bits of a float without its sign are one.
struct Span {
  const void* words;
  std::int64_t count;
};

struct Selection {
  std::uint32_t key;                 // the k-th largest
  std::vector<std::int64_t> larger;  // how many of each span are larger
  std::vector<std::int64_t> equal;   // how many of each span equal it
};

// The k-th largest, 1 <= k, of the keys from `low` to `low + 2^bits - 1`; others are not counted. A thread a span.
Selection radix_select(const std::vector<Span>& spans, std::int64_t k, std::uint32_t low, int bits);

// How many keys of each span equal `key`.
std::vector<std::int64_t> count_equal(const std::vector<Span>& spans, std::uint32_t key);

}  // namespace gradwire
