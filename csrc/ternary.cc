#include "ternary.h"

#include <algorithm>

#include "dispatch.h"
#include "marks.h"
#include "rice.h"

namespace gradwire {

namespace {

enum Form { kDense = 0, kBitmap = 1, kRice = 2, kWords = 255 };

constexpr int kLargestShift = 30;
constexpr std::uint64_t kFired = 0xaaaaaaaaaaaaaaaa;  // the upper bit of each code

std::int64_t code_bytes(std::int64_t n) { return (n + 15) / 16 * 4; }
std::int64_t bytes_of(std::int64_t bits) { return (bits + 7) / 8; }

// 32 codes, the first in the highest bits.
std::uint64_t codes_at(const TernaryEncode& t, std::int64_t n, std::int64_t i) {
  return __builtin_bswap64(Bytes{t.codes, code_bytes(n)}.word(i / 4));
}

// Calls f(place, positive) for every code that is not 0.
template <class F>
void for_each(const TernaryEncode& t, std::int64_t n, const F& f) {
  for (std::int64_t i = 0; i < n; i += 32) {
    const std::uint64_t word = codes_at(t, n, i);
    for (std::uint64_t fired = word & kFired; fired != 0;) {
      const int bit = __builtin_clzll(fired);
      f(i + bit / 2, (word >> (62 - bit) & 1) != 0);
      fired ^= std::uint64_t(1) << (63 - bit);
    }
  }
}

// How many codes before each segment are not 0, and in all.
std::vector<std::int64_t> count(const TernaryEncode& t, std::int64_t n, int threads) {
  std::vector<std::int64_t> counts(std::size_t(mark_segments(n)));
  run(&KernelTable::ternary_counts, {{t.codes, code_bytes(n)}, n, counts.data()}, n, kMarkSegment, threads);
  return starts_of(counts.data(), std::int64_t(counts.size()), n);
}

// The last code that is not 0; -1 where all are.
std::int64_t last_place(const TernaryEncode& t, std::int64_t n) {
  for (std::int64_t i = (n - 1) / 32 * 32; n > 0 && i >= 0; i -= 32)
    if (const std::uint64_t fired = codes_at(t, n, i) & kFired; fired != 0) return i + (63 - __builtin_ctzll(fired)) / 2;
  return -1;
}

std::int64_t quotients(const TernaryEncode& t, std::int64_t n, std::int64_t k, int shift) {
  if (shift == 0) return last_place(t, n) + 1 - k;  // whole gaps
  std::int64_t sum = 0, last = -1;
  for_each(t, n, [&](std::int64_t place, bool) { sum += (place - last - 1) >> shift, last = place; });
  return sum;
}

int varint_size(std::int64_t k) {
  int size = 1;
  for (; k >= 128; k >>= 7) ++size;
  return size;
}

std::uint8_t* put_varint(std::uint8_t* p, std::int64_t k) {
  for (; k >= 128; k >>= 7) *p++ = std::uint8_t(k | 128);
  *p++ = std::uint8_t(k);
  return p;
}

void write_words(const TernaryEncode& t, std::int64_t n, std::uint8_t* p) {
  for_each(t, n, [&](std::int64_t place, bool positive) {
    const std::uint32_t word = std::uint32_t(place) << 1 | std::uint32_t(positive);
    std::memcpy(p, &word, sizeof word);
    p += sizeof word;
  });
}

void write_bitmap(const TernaryEncode& t, std::int64_t n, const std::vector<std::int64_t>& starts, std::uint8_t* p,
                  int threads) {
  std::vector<std::uint8_t> edges(starts.size() - 1);
  std::uint8_t* const signs = p + bytes_of(n);
  run(&KernelTable::ternary_bits, {{t.codes, code_bytes(n)}, n, starts.data(), p, signs, edges.data()}, n,
      kMarkSegment, threads);
  join_edges(signs, starts, edges, 1);
}

void write_rice(const TernaryEncode& t, std::int64_t n, std::int64_t k, int shift, std::uint8_t* p,
                const std::uint8_t* end) {
  std::uint8_t *const low = p + bytes_of(k), *const high = low + bytes_of(k * shift);
  std::fill(high, high + (end - high), std::uint8_t{0});
  BitWriter signs(p);
  RiceWriter gaps(shift, low, high);
  for_each(t, n, [&](std::int64_t place, bool positive) { gaps.put(place), signs.put(positive, 1); });
  gaps.finish();
  signs.finish();
}

struct Choice {
  int form;
  std::int64_t size;
};

void prefer(Choice& best, int form, std::int64_t size) {
  if (size < best.size) best = {form, size};
}

Choice choose(const TernaryEncode& t, std::int64_t n, std::int64_t k, int shift) {
  const std::int64_t counted = 1 + varint_size(k);
  Choice best = {kDense, 1 + code_bytes(n)};
  if (t.words) {
    prefer(best, kWords, counted + 4 * k);
    return best;
  }
  prefer(best, kBitmap, 1 + bytes_of(n) + bytes_of(k));
  const std::int64_t fixed = counted + bytes_of(k) + bytes_of(k * shift);
  // The quotients take a pass over the codes: only where the gaps can win.
  if (fixed + bytes_of(k) < best.size) prefer(best, kRice + shift, fixed + bytes_of(k + quotients(t, n, k, shift)));
  return best;
}

// Adds to a tensor what the entries of a stream say.
struct Adder {
  float* out;
  float step;

  void operator()(std::int64_t place, bool positive) const {
    out[place] = out[place] + (positive ? step : -step);
  }
};

// One rank's bitmap and signs, and how many of these there are before each segment.
struct Bitmap {
  ByteRun marks, signs;
  std::vector<std::int64_t> starts;
  float step;
};

Bitmap bitmap_of(Bytes row, float step, std::int64_t n, int threads) {
  const Bytes body = row.from(1), marks = body.first(bytes_of(n)), signs = body.from(bytes_of(n));
  std::vector<std::int64_t> counts(std::size_t(mark_segments(n)));
  const ByteRun part = {marks.data, marks.size};
  run(&KernelTable::count_ones, {part, n, counts.data()}, n, kMarkSegment, threads);
  return {part, {signs.data, signs.size}, starts_of(counts.data(), std::int64_t(counts.size()), n), step};
}

void add_bitmaps(const TernaryAddDecoded& t, const std::vector<Bitmap>& bitmaps, std::int64_t n, int threads) {
  count_call();
  parallel_for(n, kMarkSegment, threads, [&](std::int64_t begin, std::int64_t end, int) {
    std::vector<TernaryRank> ranks;
    for (const Bitmap& b : bitmaps)
      ranks.push_back({b.marks, b.signs, b.starts[std::size_t(begin / kMarkSegment)], b.step});
    active().ternary_add_bits({ranks.data(), std::int64_t(ranks.size()), t.out, n}, begin, end);
  });
}

void add_words(Bytes body, const Adder& add, std::int64_t n, std::int64_t k) {
  std::int64_t last = -1;
  for (std::int64_t j = 0; j < k; ++j) {
    const std::uint32_t word = std::uint32_t(body.word(4 * j));
    const std::int64_t place = word >> 1;
    if (place <= last || place >= n) return;
    add(place, (word & 1) != 0);
    last = place;
  }
}

void add_rice(Bytes body, const Adder& add, std::int64_t n, std::int64_t k, int shift) {
  const Bytes low = body.from(bytes_of(k)).first(bytes_of(k * shift));
  RiceReader places(shift, low, body.from(bytes_of(k) + bytes_of(k * shift)), n);
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int64_t place = places.next();
    if (place < 0) return;
    add(place, body.bits(j, 1) != 0);
  }
}

// The count in front of the entries, which `body` then starts with; 0 where it makes no sense.
std::int64_t read_varint(Bytes& body, std::int64_t n) {
  std::int64_t k = 0;
  for (int i = 0; i < 5 && i < body.size; ++i) {
    k |= std::int64_t(body.data[i] & 127) << 7 * i;
    if (body.data[i] >= 128) continue;
    body = body.from(i + 1);
    return k <= n ? k : 0;
  }
  body = body.from(body.size);
  return 0;
}

void add_dense(Bytes body, const TernaryAddDecoded& t, std::int64_t n, int threads) {
  const std::int64_t whole = std::min(n, body.size / 4 * 16);
  const TwobitAddDecoded dense = {{body.data, 1, 0}, t.out, t.step};
  run(&KernelTable::twobit_add_decoded, dense, whole, 16, threads);
  if (whole == n) return;
  // A row that ends too early: what is missing is 0, and is added like any other 0.
  const Adder add = {t.out, t.step};
  for (std::int64_t i = whole; i < n; ++i) {
    const std::uint64_t byte = body.word(i / 4) & 255;
    const int code = int(byte >> (6 - 2 * (i % 4)) & 3);
    if (code >= 2)
      add(i, code == 3);
    else
      t.out[i] = t.out[i] + 0.0f;
  }
}

void add_row(const TernaryAddDecoded& t, Bytes row, std::int64_t n, int threads) {
  const int form = row.size > 0 ? row.data[0] : int(kDense);
  Bytes body = row.from(1);
  const Adder add = {t.out, t.step};
  if (form == kDense) return add_dense(body, t, n, threads);
  count_call();
  const std::int64_t k = read_varint(body, n);
  if (form == kWords) return add_words(body, add, n, k);
  if (form - kRice <= kLargestShift) add_rice(body, add, n, k, form - kRice);
}

}  // namespace

void ternary_encode(const TernaryEncode& t, std::int64_t n, int threads) {
  count_call();
  const std::vector<std::int64_t> starts = count(t, n, threads);
  const std::int64_t k = starts.back();
  const int shift = rice_shift(n, k);
  const Choice choice = choose(t, n, k, shift);
  t.stream[0] = std::uint8_t(choice.form);
  *t.used = std::int32_t(choice.size);
  std::uint8_t* const body = t.stream + 1;
  if (choice.form == kDense)
    std::copy_n(t.codes, code_bytes(n), body);
  else if (choice.form == kBitmap)
    write_bitmap(t, n, starts, body, threads);
  else if (choice.form == kWords)
    write_words(t, n, put_varint(body, k));
  else
    write_rice(t, n, k, shift, put_varint(body, k), t.stream + choice.size);
}

// Neighbours that are all bitmaps are added in one pass.
void ternary_add_decoded(const TernaryAddDecoded& t, std::int64_t n, int threads) {
  std::vector<Bitmap> bitmaps;
  for (std::int64_t w = 0; w <= t.streams.count; ++w) {
    const bool more = w < t.streams.count;
    const Bytes row = {t.streams.data + w * t.streams.stride, more ? t.length : 0};
    TernaryAddDecoded mine = t;
    mine.step = t.step * (more ? factor_of(t.steps, w) : 1.0f);
    if (row.size > 0 && row.data[0] == kBitmap) {
      bitmaps.push_back(bitmap_of(row, mine.step, n, threads));
      continue;
    }
    if (!bitmaps.empty()) add_bitmaps(t, bitmaps, n, threads);
    bitmaps.clear();
    if (more) add_row(mine, row, n, threads);
  }
}

}  // namespace gradwire
