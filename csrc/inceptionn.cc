#include "inceptionn.h"

#include <cstring>
#include <vector>

#include "dispatch.h"

namespace gradwire {

namespace {

constexpr std::int64_t kAlign = 64;

// The ranges of the threads, and how many bytes of codes each takes; then where its codes begin.
std::vector<std::int64_t> sizes_for(std::int64_t n, int threads) {
  const std::int64_t size = range_size(n, kAlign, threads);
  return std::vector<std::int64_t>(std::size_t((n + size - 1) / size));
}

std::int64_t to_begins(std::vector<std::int64_t>& sizes) {
  std::int64_t total = 0;
  for (std::int64_t& size : sizes) {
    const std::int64_t begin = total;
    total += size;
    size = begin;
  }
  return total;
}

void write_raw(const Inceptionn& t) {
  t.stream[0] = 1;
  std::memcpy(t.stream + 1, t.x, 4 * std::size_t(t.n));
  *t.used = std::int32_t(1 + 4 * t.n);
}

}  // namespace

void inceptionn_encode(const Inceptionn& t, int threads) {
  count_call();
  *t.used = 0;
  if (t.n == 0) return;
  const KernelTable& kernels = active();
  const std::int64_t start = 1 + (t.n + 3) / 4, capacity = 1 + 4 * t.n;
  std::vector<std::int64_t> begins = sizes_for(t.n, threads);
  parallel_for(t.n, kAlign, threads, [&](std::int64_t begin, std::int64_t end, int i) {
    kernels.inceptionn_tags({t.x, t.stream + 1, t.bound, &begins[std::size_t(i)]}, begin, end);
  });
  const std::int64_t total = start + to_begins(begins);
  if (total >= capacity) return write_raw(t);
  t.stream[0] = 0;
  *t.used = std::int32_t(total);
  begins.push_back(total - start);
  std::uint8_t* const codes = t.stream + start;
  parallel_for(t.n, kAlign, threads, [&](std::int64_t begin, std::int64_t end, int i) {
    const std::int64_t first = begins[std::size_t(i)], last = begins[std::size_t(i) + 1];
    kernels.inceptionn_codes({t.x, codes + first, codes + last, t.bound}, begin, end);
  });
  std::memset(t.stream + total, 0, std::size_t(capacity - total));
}

void inceptionn_add_decoded(const InceptionnDecoded& t, int threads) {
  count_call();
  if (t.n == 0) return;
  const KernelTable& kernels = active();
  const std::int64_t start = 1 + (t.n + 3) / 4;
  // A stream that is too short for its tags can only come from outside: it is worked through with zeros behind it.
  std::vector<std::uint8_t> whole;
  const std::uint8_t* stream = t.stream;
  std::int64_t bytes = t.bytes;
  const bool raw = bytes > 0 && stream[0] == 1;
  if (bytes < (raw ? 1 + 4 * t.n : start)) {
    whole.assign(std::size_t(raw ? 1 + 4 * t.n : start), 0);
    if (bytes > 0) std::memcpy(whole.data(), stream, std::size_t(bytes));
    stream = whole.data(), bytes = std::int64_t(whole.size());
  }
  std::vector<std::int64_t> begins = sizes_for(t.n, threads);
  if (!raw) {
    parallel_for(t.n, kAlign, threads, [&](std::int64_t begin, std::int64_t end, int i) {
      kernels.inceptionn_sizes({stream + 1, &begins[std::size_t(i)]}, begin, end);
    });
    to_begins(begins);
  }
  parallel_for(t.n, kAlign, threads, [&](std::int64_t begin, std::int64_t end, int i) {
    const std::int64_t first = raw ? 1 + 4 * begin : start + begins[std::size_t(i)];
    kernels.inceptionn_add_decoded(
        {raw ? nullptr : stream + 1, stream + (first < bytes ? first : bytes), stream + bytes, t.out, t.bound, t.scale},
        begin, end);
  });
}

}  // namespace gradwire
