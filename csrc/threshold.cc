#include "threshold.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "bits.h"
#include "dispatch.h"
#include "marks.h"

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

// What the pass over the tensor left.
struct Found {
  std::vector<std::int32_t> counts;  // of each segment
  std::vector<std::uint8_t>& bitmap;
  std::vector<std::int64_t> starts;
};

// Memory that a thread keeps for its next call, as fetching fresh pages takes longer than filling them.
std::vector<std::uint8_t>& scratch(std::int64_t size) {
  thread_local std::vector<std::uint8_t> bytes;
  if (std::int64_t(bytes.size()) < size) bytes.resize(std::size_t(size));
  return bytes;
}

Found scan(const Threshold& t, std::int64_t n, int threads) {
  Found f = {std::vector<std::int32_t>(std::size_t(segments(n))), scratch((n + 63) / 64 * 8), {}};
  std::uint32_t least;
  std::memcpy(&least, &t.threshold, sizeof least);
  run(&KernelTable::threshold_scan, {t, t.x, least & 0x7fffffff, t.level, f.bitmap.data(), f.counts.data()}, n, kSegment,
      threads);
  f.starts = starts_of(f.counts.data(), segments(n), n);
  return f;
}

// The values and, in the block form, their places.
void write_entries(const Threshold& t, const Found& f, Form form, std::int64_t n, int threads) {
  float* const values = reinterpret_cast<float*>(t.stream + kHead);
  float* const left = t.grad ? t.residual : nullptr;
  if (form == kDense)
    return run(&KernelTable::spread_marked, {t.x, f.bitmap.data(), values, left}, n, kSegment, threads);
  std::uint8_t* const places = t.stream + kHead + 4 * f.starts.back();
  std::uint16_t* indices = nullptr;
  if (form == kBitmap)
    std::memcpy(places, f.bitmap.data(), std::size_t((n + 7) / 8));
  else {
    std::memcpy(places, f.counts.data(), sizeof(std::int32_t) * f.counts.size());
    indices = reinterpret_cast<std::uint16_t*>(places + sizeof(std::int32_t) * f.counts.size());
  }
  run(&KernelTable::take_marked, {t.x, f.bitmap.data(), f.starts.data(), values, indices, left}, n, kSegment, threads);
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
  const SparsePart part = {s.values, s.places + 4 * segments(n), s.places, s.k, nullptr};
  run(&KernelTable::sparse_add_decoded, {&part, 1, t.out, n, t.scale}, n, kSegment, threads);
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
  const Form form = smallest(n, f.starts.back());
  const std::int64_t sent = form == kDense ? n : f.starts.back();
  const std::int32_t head[2] = {form, std::int32_t(sent)};
  std::memcpy(t.stream, head, sizeof head);
  write_entries(t, f, form, n, threads);
  *t.used = std::int32_t(size_of(form, n, sent));
}

void threshold_add_decoded(const ThresholdAddDecoded& t, std::int64_t n, int threads) {
  for (std::int64_t w = 0; w < t.streams.count; ++w)
    add_row(t, {t.streams.data + w * t.streams.stride, t.length}, n, threads);
}

}  // namespace gradwire
