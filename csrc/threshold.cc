#include "threshold.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "bits.h"
#include "dispatch.h"

namespace gradwire {

namespace {

enum Form : std::int32_t { kDense = 0, kBitmap = 1, kBlock = 2 };

constexpr std::int64_t kSegment = 65536;
constexpr std::int64_t kHead = 8;

std::int64_t segments(std::int64_t n) { return (n + kSegment - 1) / kSegment; }

std::int64_t size_of(std::int32_t form, std::int64_t n, std::int64_t k) {
  if (form == kDense) return kHead + 4 * k;
  return kHead + 4 * k + (form == kBitmap ? (n + 7) / 8 : 2 * k + 4 * segments(n));
}

Form smallest(std::int64_t n, std::int64_t k) {
  Form best = kDense;
  std::int64_t least = size_of(kDense, n, n);
  for (const Form form : {kBitmap, kBlock})
    if (size_of(form, n, k) < least) best = form, least = size_of(form, n, k);
  return best;
}

// What the pass over the tensor left, a range for each thread.
struct Found {
  std::int64_t range;
  std::vector<std::int64_t> counts;  // of each range
  std::vector<std::int32_t> segments;
  std::vector<std::uint8_t>& bitmap;
  std::int64_t total = 0;
};

// Memory that a thread keeps for its next call, as fetching fresh pages takes longer than filling them.
std::vector<std::uint8_t>& scratch(std::int64_t size) {
  thread_local std::vector<std::uint8_t> bytes;
  if (std::int64_t(bytes.size()) < size) bytes.resize(std::size_t(size));
  return bytes;
}

float* values_of(const Threshold& t) { return reinterpret_cast<float*>(t.stream + kHead); }

Found scan(const Threshold& t, std::int64_t n, int threads) {
  const std::int64_t range = range_size(n, kSegment, threads);
  Found f = {range, std::vector<std::int64_t>(std::size_t((n + range - 1) / range)),
             std::vector<std::int32_t>(std::size_t(segments(n))), scratch((n + 63) / 64 * 8)};
  std::uint32_t least;
  std::memcpy(&least, &t.threshold, sizeof least);
  std::fill_n(f.bitmap.data() + n / 64 * 8, n % 64 ? 8 : 0, std::uint8_t(0));
  parallel_tasks(int(f.counts.size()), [&](int r) {
    const std::int64_t begin = r * range, end = std::min(begin + range, n);
    active().threshold_scan({t, t.x, least & 0x7fffffff, t.level, values_of(t) + begin, f.bitmap.data(), f.segments.data(),
                             &f.counts[std::size_t(r)]},
                            begin, end);
  });
  for (const std::int64_t count : f.counts) f.total += count;
  return f;
}

// The values of all ranges, end to end.
void close_ranks(const Threshold& t, const Found& f) {
  float* to = values_of(t);
  for (std::size_t r = 0; r < f.counts.size(); ++r) {
    const float* const from = values_of(t) + std::int64_t(r) * f.range;
    if (r > 0) std::memmove(to, from, sizeof(float) * std::size_t(f.counts[r]));
    to += f.counts[r];
  }
}

// From the back, so that no value is overwritten before it is moved.
void spread(const Threshold& t, const Found& f, std::int64_t n) {
  std::int64_t left = f.total;
  for (std::int64_t i = n - 1; i >= 0; --i)
    values_of(t)[i] = f.bitmap[std::size_t(i / 8)] >> i % 8 & 1 ? values_of(t)[--left] : 0.0f;
}

void write_block(const Found& f, std::int64_t n, std::uint8_t* to) {
  const std::int64_t nbytes = std::int64_t(sizeof(std::int32_t)) * segments(n);
  std::memcpy(to, f.segments.data(), std::size_t(nbytes));
  to += nbytes;
  Ones places({f.bitmap.data(), (n + 63) / 64 * 8});
  for (std::int64_t place; (place = places.next()) >= 0; to += 2) {
    const std::uint16_t low = std::uint16_t(place);
    std::memcpy(to, &low, sizeof low);
  }
}

void clear(std::uint8_t* from, std::uint8_t* to, int threads) {
  parallel_for(to - from, 4096, threads, [&](std::int64_t begin, std::int64_t end, int) {
    std::memset(from + begin, 0, std::size_t(end - begin));
  });
}

// A payload of one rank, all of whose bytes are there.
struct Sent {
  std::int32_t form;
  std::int64_t k;
  const std::uint8_t *values, *places;
};

void add(const ThresholdAddDecoded& t, const Sent& s, std::int64_t place, std::int64_t j) {
  float value;
  std::memcpy(&value, s.values + 4 * j, sizeof value);
  t.out[place] = t.out[place] + t.scale * value;
}

void add_run(const ThresholdAddDecoded& t, const Sent& s, std::int64_t place, std::int64_t j, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) add(t, s, place + i, j + i);
}

std::uint64_t bits_at(const Sent& s, std::int64_t n, std::int64_t i) {
  const std::uint64_t word = Bytes{s.places, (n + 7) / 8}.word(i / 8);
  return n - i >= 64 ? word : word & ((std::uint64_t(1) << (n - i)) - 1);
}

void add_bitmap(const ThresholdAddDecoded& t, const Sent& s, std::int64_t n, std::int64_t begin, std::int64_t end) {
  std::int64_t j = 0;
  for (std::int64_t i = 0; i < begin; i += 64) j += __builtin_popcountll(bits_at(s, n, i));
  for (std::int64_t i = begin; i < end && j < s.k; i += 64) {
    std::uint64_t word = bits_at(s, n, i);
    if (word == ~std::uint64_t(0) && j + 64 <= s.k) {
      add_run(t, s, i, j, 64);
      j += 64;
      continue;
    }
    for (; word != 0 && j < s.k; word &= word - 1, ++j) add(t, s, i + __builtin_ctzll(word), j);
  }
}

void add_block(const ThresholdAddDecoded& t, const Sent& s, std::int64_t n, int threads) {
  const SparseAddDecoded sparse = {{s.values, 1, 0}, {s.places + 4 * segments(n), 1, 0}, {s.places, 1, 0}, s.k,
                                   t.out, n, t.scale};
  run(&KernelTable::sparse_add_decoded, sparse, n, kSegment, threads);
}

void add_row(const ThresholdAddDecoded& t, Bytes row, std::int64_t n, int threads) {
  const std::int32_t form = std::int32_t(row.bits(0, 32)), claimed = std::int32_t(row.bits(32, 32));
  const std::int64_t k = claimed >= 0 && claimed <= n ? claimed : 0, size = size_of(form, n, k);
  std::vector<std::uint8_t> whole;
  if (row.size < size) {
    whole.resize(std::size_t(size));
    std::copy_n(row.data, row.size, whole.data());
    row.data = whole.data();
  }
  const Sent s = {form, k, row.data + kHead, row.data + kHead + 4 * k};
  if (form == kBlock) return add_block(t, s, n, threads);
  count_call();
  if (form == kDense)
    parallel_for(k, 64, threads,
                 [&](std::int64_t begin, std::int64_t end, int) { add_run(t, s, begin, begin, end - begin); });
  if (form == kBitmap)
    parallel_for(n, 64, threads,
                 [&](std::int64_t begin, std::int64_t end, int) { add_bitmap(t, s, n, begin, end); });
}

}  // namespace

void threshold_encode(const Threshold& t, std::int64_t n, int threads) {
  count_call();
  const Found f = scan(t, n, threads);
  const Form form = smallest(n, f.total);
  const std::int64_t sent = form == kDense ? n : f.total;
  const std::int32_t head[2] = {form, std::int32_t(sent)};
  close_ranks(t, f);
  if (form == kDense) spread(t, f, n);
  std::memcpy(t.stream, head, sizeof head);
  std::uint8_t* const places = t.stream + kHead + 4 * sent;
  if (form == kBitmap) std::memcpy(places, f.bitmap.data(), std::size_t((n + 7) / 8));
  if (form == kBlock) write_block(f, n, places);
  *t.used = std::int32_t(size_of(form, n, sent));
  clear(t.stream + *t.used, t.stream + kHead + 4 * n, threads);
}

void threshold_add_decoded(const ThresholdAddDecoded& t, std::int64_t n, int threads) {
  for (std::int64_t w = 0; w < t.streams.count; ++w)
    add_row(t, {t.streams.data + w * t.streams.stride, t.length}, n, threads);
}

}  // namespace gradwire
