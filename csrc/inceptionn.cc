#include "inceptionn.h"

#include <cstring>
#include <vector>

#include "dispatch.h"

namespace gradwire {

namespace {

constexpr std::int64_t kAlign = 64;
constexpr std::int64_t kPart = 32768;  // elements that stay in the L2 cache from counting to writing

std::int64_t tag_end(std::int64_t n) { return 1 + (n + 3) / 4; }

void write_raw(const Inceptionn& t) {
  t.stream[0] = 1;
  std::memcpy(t.stream + 1, t.x, 4 * std::size_t(t.n));
  *t.used = std::int32_t(1 + 4 * t.n);
}

// Calls f(begin, end, number of the part) for every part.
template <class F>
void for_parts(std::int64_t n, int threads, const F& f) {
  parallel_for(n, kPart, threads, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; i += kPart) f(i, std::min(i + kPart, end), std::size_t(i / kPart));
  });
}

// Zero, but NaN where an element is no number.
void leave_nothing(float* x, std::int64_t n, int threads) {
  parallel_for(n, kAlign, threads, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) x[i] = x[i] - x[i];
  });
}

// A stream as it is, or, if it is too short for its own tags, followed by zeros in `longer`: it comes from outside.
InceptionnStream open(const InceptionnDecoded& t, std::int64_t rank, std::vector<std::uint8_t>& longer) {
  const std::uint8_t* stream = t.streams.data + rank * t.streams.stride;
  const bool raw = t.bytes > 0 && stream[0] == 1;
  const std::int64_t least = raw ? 1 + 4 * t.n : tag_end(t.n);
  if (t.bytes < least) {
    longer.assign(std::size_t(least), 0);
    if (t.bytes > 0) std::memcpy(longer.data(), stream, std::size_t(t.bytes));
    stream = longer.data();
  }
  const std::uint8_t* const end = stream + std::max(t.bytes, least);
  return raw ? InceptionnStream{nullptr, stream + 1, end} : InceptionnStream{stream + 1, stream + tag_end(t.n), end};
}

// Where the codes of each range begin: a row for each stream, an entry for each range and one more.
using Begins = std::vector<std::vector<std::int64_t>>;

Begins find_begins(const std::vector<InceptionnStream>& streams, std::int64_t n, int threads) {
  const KernelTable& kernels = active();
  const std::int64_t range = range_size(n, kAlign, threads);
  Begins begins(streams.size(), std::vector<std::int64_t>(std::size_t((n + range - 1) / range + 1)));
  parallel_for(n, kAlign, threads, [&](std::int64_t begin, std::int64_t end, int i) {
    for (std::size_t w = 0; w < streams.size(); ++w)
      if (streams[w].tags) kernels.inceptionn_sizes({streams[w].tags, &begins[w][std::size_t(i) + 1]}, begin, end);
  });
  for (std::vector<std::int64_t>& row : begins)
    for (std::size_t i = 1; i < row.size(); ++i) row[i] += row[i - 1];
  return begins;
}

}  // namespace

// What is sent is known only when all parts are, and the residual must not be changed before.
void inceptionn_encode_feedback(const Inceptionn& t, const Feedback& feedback, int threads) {
  count_call();
  *t.used = 0;
  const KernelTable& kernels = active();
  const std::int64_t start = tag_end(t.n), capacity = 1 + 4 * t.n;
  std::uint8_t *const tags = t.stream + 1, *const codes = t.stream + start;
  std::vector<std::int64_t> starts(std::size_t((t.n + kPart - 1) / kPart + 1));
  for_parts(t.n, threads, [&](std::int64_t begin, std::int64_t end, std::size_t part) {
    kernels.inceptionn_tags({t.x, tags, t.bound, &starts[part + 1], feedback}, begin, end);
  });
  if (t.n == 0) return;
  for (std::size_t part = 1; part < starts.size(); ++part) starts[part] += starts[part - 1];
  const std::int64_t total = start + starts.back();
  if (total >= capacity) {
    write_raw(t);
    return leave_nothing(feedback.residual, t.n, threads);
  }
  t.stream[0] = 0;
  *t.used = std::int32_t(total);
  for_parts(t.n, threads, [&](std::int64_t begin, std::int64_t end, std::size_t part) {
    kernels.inceptionn_codes({t.x, tags, codes + starts[part], codes + starts[part + 1], t.bound, feedback.residual},
                             begin, end);
  });
}

void inceptionn_encode(const Inceptionn& t, int threads) {
  count_call();
  *t.used = 0;
  if (t.n == 0) return;
  const KernelTable& kernels = active();
  const std::int64_t start = tag_end(t.n), capacity = 1 + 4 * t.n;
  std::uint8_t *const tags = t.stream + 1, *const codes = t.stream + start;
  const auto classify = [&](std::int64_t begin, std::int64_t end) {
    std::int64_t bytes = 0;
    kernels.inceptionn_tags({t.x, tags, t.bound, &bytes, {nullptr, nullptr, nullptr}}, begin, end);
    return bytes;
  };
  const auto write = [&](std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t bytes) {
    if (start + first + bytes > capacity) return;  // The tensor will be sent as it is.
    kernels.inceptionn_codes({t.x, tags, codes + first, codes + first + bytes, t.bound, nullptr}, begin, end);
  };
  const std::int64_t total = start + parallel_append(t.n, kPart, threads, classify, write);
  if (total >= capacity) return write_raw(t);
  t.stream[0] = 0;
  *t.used = std::int32_t(total);
}

void inceptionn_add_decoded(const InceptionnDecoded& t, int threads) {
  count_call();
  if (t.n == 0) return;
  const std::size_t ranks = std::size_t(t.streams.count);
  std::vector<std::vector<std::uint8_t>> longer(ranks);
  std::vector<InceptionnStream> streams(ranks);
  for (std::size_t w = 0; w < ranks; ++w) streams[w] = open(t, std::int64_t(w), longer[w]);
  const Begins begins = find_begins(streams, t.n, threads);
  parallel_for(t.n, kAlign, threads, [&](std::int64_t begin, std::int64_t end, int i) {
    std::vector<const std::uint8_t*> places(ranks);
    for (std::size_t w = 0; w < ranks; ++w)
      places[w] = streams[w].codes + std::min(begins[w][std::size_t(i)], streams[w].end - streams[w].codes);
    active().inceptionn_add_decoded({streams.data(), places.data(), t.streams.count, t.out, t.bound, t.scale}, begin,
                                    end);
  });
}

}  // namespace gradwire
