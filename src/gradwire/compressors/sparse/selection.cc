// The largest magnitudes on a CPU: the kernels, and the operations of ops.py.
#include "family.h"

namespace gradwire {

// How many magnitudes are above a bracket and inside it.
struct Tally {
  std::int64_t above, inside;
};

// The magnitudes larger than `low` and at most `high`, as bits without the sign. `found` and `places` receive the
// values inside and their distance from the range's begin, as far as there is room. Without places, `found` receives
// magnitudes; with them nothing counts as above.
struct Bracket {
  std::uint32_t low, high;
  std::uint32_t *found, *places;
  std::int64_t room;
  Tally* tally;
};

struct TopkScan : Bracket {
  const float* x;
};
GRADWIRE_KERNEL(topk_scan, TopkScan)

struct TopkScanFeedback : Feedback, Bracket {};
GRADWIRE_KERNEL(topk_scan_feedback, TopkScanFeedback)

// Keeps the magnitudes larger than `least`, and the first `ties` that equal it: `count` in all.
struct TopkEmit {
  const float* x;
  float* residual;  // set to zero where it is kept, or null
  std::uint32_t least;
  std::int64_t ties, count;
  float* values;
  std::uint16_t* indices;
  std::int32_t* counts;
};
GRADWIRE_KERNEL(topk_emit, TopkEmit)

// `x` is a list of values, with room for 16 more of `places`, where they are in the segments of the tensor.
struct TopkEmitFound : TopkEmit {
  std::uint32_t* places;
};
GRADWIRE_KERNEL(topk_emit_found, TopkEmitFound)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/compensate.h"

namespace gradwire::GRADWIRE_TARGET {

// The first look of top-k at a value: is its magnitude inside the bracket in which the k-th largest is expected?

// Without branches on the values: a percent of them at random places is what a CPU cannot predict.
GRADWIRE_INLINE void sort_out(const Bracket& k, F32 x, std::int64_t place, int count, Tally& t) {
  const U32 magnitude = abs_bits(x);
  Mask inside = first_of(gt(magnitude, set_u32(k.low)), count);
  const bool fits = t.inside + kLanes <= k.room;
  if (k.places) {
    if (fits) store_few(k.places + t.inside, set_u32(std::uint32_t(place)) + iota(), inside);
    if (fits) store_few(k.found + t.inside, as_u32(x), inside);
  } else {
    const Mask above = first_of(gt(magnitude, set_u32(k.high)), count);
    inside = and_not(inside, above);
    t.above += count_of(above);
    if (fits) store_few(k.found + t.inside, magnitude, inside);
  }
  t.inside += count_of(inside);
}

// The first pass of top-k: sorts out the elements by a bracket around the expected k-th largest magnitude.

void topk_scan(const TopkScan& args, std::int64_t begin, std::int64_t end) {
  const TopkScan k = args;
  Tally t = {0, 0};
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) sort_out(k, load_ahead(k.x + i, kLanes), i - begin, kLanes, t);
  if (i < end) sort_out(k, load(k.x + i, int(end - i)), i - begin, int(end - i), t);
  *k.tally = t;
}

// The first pass of top-k with feedback: residual = residual + grad.

GRADWIRE_INLINE void scan_feedback_step(const TopkScanFeedback& k, std::int64_t begin, std::int64_t i, int count,
                                        Tally& t, U32& worst) {
  const F32 x = compensate(k, i, count, worst);
  store(k.residual + i, x, count);
  sort_out(k, x, i - begin, count, t);
}

void topk_scan_feedback(const TopkScanFeedback& args, std::int64_t begin, std::int64_t end) {
  const TopkScanFeedback k = args;
  Tally t = {0, 0};
  U32 worst = set_u32(0);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) scan_feedback_step(k, begin, i, kLanes, t, worst);
  if (i < end) scan_feedback_step(k, begin, i, int(end - i), t, worst);
  *k.tally = t;
  if (k.status) flag_nonfinite(k.status, worst);
}

// The last pass of top-k: writes out what is above the least magnitude to be kept, and the first `ties` that equal it.

struct Kept {
  std::int64_t count, ties_left;
};

GRADWIRE_INLINE std::uint32_t lowest_bits(std::uint32_t bits, std::int64_t count) {
  while (__builtin_popcount(bits) > count) bits ^= 0x80000000u >> __builtin_clz(bits);
  return bits;
}

GRADWIRE_INLINE Mask choose(const TopkEmit& k, F32 x, int count, Kept& kept) {
  const U32 magnitude = abs_bits(x), least = set_u32(k.least);
  const Mask larger = first_of(gt(magnitude, least), count);
  if (kept.ties_left == 0) return larger;
  const std::uint32_t equal = bits(first_of(eq(magnitude, least), count));
  if (equal == 0) return larger;
  const std::uint32_t taken = lowest_bits(equal, kept.ties_left);
  kept.ties_left -= __builtin_popcount(taken);
  return mask_of(std::uint16_t(bits(larger) | taken));
}

// Writes the chosen of 16 values, of which `count` exist, and their indices.
GRADWIRE_INLINE Mask emit_chosen(const TopkEmit& k, F32 x, U32 index, int count, Kept& kept) {
  const Mask chosen = choose(k, x, count, kept);
  std::uint32_t* const values = reinterpret_cast<std::uint32_t*>(k.values) + kept.count;
  std::uint16_t* const indices = k.indices + kept.count;
  // A bulk store may write 16, and in their places only this thread's values may be written.
  if (kept.count + kLanes <= k.count) {
    store_front_u16(indices, index, chosen);
    kept.count += store_front(values, as_u32(x), chosen);
  } else {
    store_selected_u16(indices, index, chosen);
    kept.count += store_selected(values, as_u32(x), chosen);
  }
  return chosen;
}

GRADWIRE_INLINE void emit_step(const TopkEmit& k, std::int64_t i, int count, Kept& kept) {
  emit_chosen(k, load_ahead(k.x + i, count), set_u32(std::uint32_t(i)) + iota(), count, kept);
}

GRADWIRE_INLINE void emit_segment(const TopkEmit& k, std::int64_t begin, std::int64_t end, Kept& kept) {
  const std::int64_t before = kept.count;
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) emit_step(k, i, kLanes, kept);
  if (i < end) emit_step(k, i, int(end - i), kept);
  k.counts[begin / 65536] = std::int32_t(kept.count - before);
  if (k.residual)
    for (std::int64_t j = before; j < kept.count; ++j) k.residual[begin + k.indices[j]] = 0.0f;
}

// Segment by segment: each has a count, and is still in the L2 cache when its kept elements are set to zero.
void topk_emit(const TopkEmit& args, std::int64_t begin, std::int64_t end) {
  const TopkEmit k = args;
  Kept kept = {0, k.ties};
  for (std::int64_t i = begin; i < end; i += 65536) emit_segment(k, i, end - i < 65536 ? end : i + 65536, kept);
}

// The last pass of top-k over what the first one collected: [begin, end) are positions in that list.

// The places of what is kept move to the front of their list.
GRADWIRE_INLINE void emit_found_step(const TopkEmitFound& k, std::int64_t i, int count, Kept& kept) {
  std::uint32_t* const front = k.places + kept.count;
  const U32 places = load_u32(k.places + i);
  store_front(front, places, emit_chosen(k, load(k.x + i, count), places, count, kept));
}

void topk_emit_found(const TopkEmitFound& args, std::int64_t begin, std::int64_t end) {
  const TopkEmitFound k = args;
  Kept kept = {0, k.ties};
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) emit_found_step(k, i, kLanes, kept);
  if (i < end) emit_found_step(k, i, int(end - i), kept);
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

// The k-th largest of many 31-bit keys, exactly, by counting: 11 bits at a time, from the top.

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

constexpr int kDigit = 11;
constexpr std::uint32_t kBins = 1u << kDigit;

// Neighbours are counted in different places: equal keys in a row would otherwise wait for each other's sum.
constexpr int kWays = 4;

std::uint32_t key_in(const Span& span, std::int64_t i) {
  std::uint32_t word;
  std::memcpy(&word, static_cast<const char*>(span.words) + i * std::int64_t(sizeof word), sizeof word);
  return word & 0x7fffffff;
}

void count_digits(const Span& span, std::uint32_t low, int shift, std::uint32_t bins, std::int64_t* counts) {
  std::uint32_t ways[kWays][kBins + 1] = {};  // the last bin is for keys outside
  const auto count = [&](std::uint32_t* way, std::int64_t i) {
    ++way[std::min((key_in(span, i) - low) >> shift, bins)];
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

// How many keys of each span equal `key`.
std::vector<std::int64_t> count_equal(const std::vector<Span>& spans, std::uint32_t key) {
  std::vector<std::int64_t> equal(spans.size());
  parallel_tasks(int(spans.size()), [&](int i) {
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < spans[i].count; ++j) count += key_in(spans[i], j) == key;
    equal[i] = count;
  });
  return equal;
}

// The k-th largest, 1 <= k, of the keys from `low` to `low + 2^bits - 1`; others are not counted. A thread a span.
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

// The k largest magnitudes of a tensor, exactly, and with no scratch memory of the tensor's size.
//
//   1. a sample of the tensor gives a bracket: two magnitudes between which the k-th largest almost certainly lies
//   2. one pass counts what is above the bracket and collects what is inside
//   3. the k-th largest is found among what was collected; if the sample misled, by counting digits of all elements
//   4. what is larger is written out, and as many that equal it as k asks for, those of lowest index
//
// Where k is small the bracket is open above, so all that can be chosen is collected with its place, and step 4 needs
// no second pass. The result depends on the values alone, not on the sample, the threads or the SIMD target.

struct Topk : Feedback {  // without feedback grad and residual are null
  const float* x;         // with feedback the residual
  float* values;
  std::uint16_t* indices;
  std::int32_t* counts;
  std::int64_t k, n;
};

constexpr std::int64_t kSegment = 65536;
constexpr std::int64_t kLine = 16;        // elements of a cache line, sampled together
constexpr std::int64_t kSample = 16384;   // the bracket then holds a percent of the elements
constexpr std::int64_t kTooSmall = 4096;  // to be sampled
constexpr std::int64_t kOpenBelow = 32;   // the bracket is open above where k is at most n by this
constexpr std::uint32_t kLargest = 0x7fffffff;

// How far, in standard deviations of the sample's count, the bracket's ends are from where they are expected.
constexpr double kSlack = 5;

// One thread's part: the elements [begin, end), and what was found there.
struct Part {
  std::int64_t begin, end, room;
  std::uint32_t *found, *places;
  Tally tally;
};

struct Search {
  std::uint32_t low, high;
  std::vector<Part> parts;

  bool open() const { return high == kLargest; }
};

int part_count(const Search& s) { return int(s.parts.size()); }

std::vector<Part> cut(std::int64_t n, int threads) {
  std::vector<Part> parts;
  const std::int64_t range = range_size(n, kSegment, threads);
  for (std::int64_t i = 0; i < n; i += range) parts.push_back({i, std::min(i + range, n), 0, nullptr, nullptr, {0, 0}});
  return parts;
}

std::uint32_t key_of(const Topk& t, std::int64_t i) {
  const float value = t.grad ? t.residual[i] + t.grad[i] : t.x[i];
  std::uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return word & kLargest;
}

// A line from each of equal stretches of the tensor, at a place that looks random: at a fixed distance it could be
// the same column of a matrix every time.
struct Sample {
  std::int64_t stretch;
  std::vector<std::uint32_t> keys;
};

Sample sample(const Topk& t) {
  const std::int64_t lines = std::min(kSample, t.n / 4) / kLine;
  Sample s = {t.n / lines, {}};
  for (std::int64_t line = 0; line < lines; ++line) {
    const std::uint64_t hash = std::uint64_t(line) * 0x9e3779b97f4a7c15 >> 33;
    const std::int64_t first = line * s.stretch + std::int64_t(hash) % (s.stretch - kLine + 1);
    for (std::int64_t i = first; i < first + kLine; ++i) s.keys.push_back(key_of(t, i));
  }
  return s;
}

void set_ends(Search& search, const Sample& s, double share) {
  const double size = double(s.keys.size()), expected = share * size;
  const double slack = kSlack * (std::sqrt(expected * (1 - share)) + 1);
  const auto key_of_rank = [&](double rank) {
    return radix_select({{s.keys.data(), std::int64_t(s.keys.size())}}, std::int64_t(rank), 0, 31).key;
  };
  search.low = expected + slack > size ? 0 : key_of_rank(expected + slack);
  search.high = share * kOpenBelow <= 1 || expected - slack < 1 ? kLargest : key_of_rank(expected - slack);
}

// Memory that a thread keeps for its next call: to fetch fresh pages from the system takes longer than to fill them.
std::uint32_t* scratch(std::int64_t size) {
  thread_local std::unique_ptr<std::uint32_t[]> words;
  thread_local std::int64_t capacity = 0;
  if (size > capacity) {
    words.reset();  // before the larger one is there
    words.reset(new std::uint32_t[std::size_t(size)]);
    capacity = size;
  }
  return words.get();
}

// Room in each part for half as much again as the sample found there.
void make_room(Search& search, const Sample& s, std::int64_t n) {
  std::vector<std::int64_t> hits(search.parts.size());
  const std::int64_t range = search.parts[0].end;
  for (std::size_t i = 0; i < s.keys.size(); ++i) {
    const std::int64_t line = std::int64_t(i) / kLine;
    hits[std::size_t(line * s.stretch / range)] += s.keys[i] > search.low && s.keys[i] <= search.high;
  }
  const double each = 1.5 * double(n) / double(std::max<std::size_t>(s.keys.size(), 1));
  std::int64_t total = 0;
  for (std::size_t r = 0; r < hits.size(); ++r) {
    Part& part = search.parts[r];
    part.room = std::min(std::int64_t(each * double(hits[r])) + kTooSmall, part.end - part.begin) + kLine;
    total += part.room;
  }
  std::uint32_t* words = scratch(search.open() ? 2 * total : total);
  for (Part& part : search.parts) {
    part.found = words, words += part.room;
    if (search.open()) part.places = words, words += part.room;
  }
}

Search prepare(const Topk& t, int threads) {
  Search search = {0, kLargest, cut(t.n, threads)};
  Sample s = {1, {}};
  if (t.n > kTooSmall) {
    s = sample(t);
    set_ends(search, s, double(t.k) / double(t.n));
  }
  make_room(search, s, t.n);
  return search;
}

void scan(const Topk& t, Search& search) {
  parallel_tasks(part_count(search), [&](int i) {
    Part& p = search.parts[std::size_t(i)];
    const Bracket b = {search.low, search.high, p.found, p.places, p.room, &p.tally};
    if (t.grad)
      kernels::topk_scan_feedback({t, b}, p.begin, p.end);
    else
      kernels::topk_scan({b, t.x}, p.begin, p.end);
  });
}

int width(std::uint32_t x) { return x == 0 ? 0 : 32 - __builtin_clz(x); }

struct Choice {
  Selection selection;
  bool collected;  // everything chosen is among what was found, with its place
};

// The smallest magnitude to be kept.
Choice choose(const Topk& t, const Search& search) {
  std::int64_t above = 0, inside = 0;
  bool complete = true;
  std::vector<Span> all, found;
  std::vector<std::int64_t> larger;
  for (const Part& p : search.parts) {
    above += p.tally.above, inside += p.tally.inside;
    complete = complete && p.tally.inside + kLine <= p.room;
    larger.push_back(p.tally.above + p.tally.inside);
    all.push_back({t.x + p.begin, p.end - p.begin}), found.push_back({p.found, p.tally.inside});
  }
  if (complete && above < t.k && t.k <= above + inside) {
    Selection s = radix_select(found, t.k - above, search.low, width(search.high - search.low));
    for (std::size_t r = 0; r < larger.size(); ++r) s.larger[r] += search.parts[r].tally.above;
    return {s, search.open()};
  }
  if (t.k > above + inside) {
    const Selection s = {search.low, larger, count_equal(all, search.low)};
    std::int64_t enough = above + inside;
    for (const std::int64_t equal : s.equal) enough += equal;
    if (t.k <= enough) return {s, false};
  }
  return {radix_select(all, t.k, 0, 31), false};
}

// What each part writes out, side by side.
std::vector<TopkEmit> emissions(const Topk& t, const Selection& s) {
  std::vector<TopkEmit> emits;
  std::int64_t ties = t.k, place = 0;
  for (const std::int64_t larger : s.larger) ties -= larger;
  for (std::size_t r = 0; r < s.larger.size(); ++r) {
    const std::int64_t taken = std::min(ties, s.equal[r]), count = s.larger[r] + taken;
    emits.push_back({t.x, t.residual, s.key, taken, count, t.values + place, t.indices + place, t.counts});
    ties -= taken, place += count;
  }
  return emits;
}

void emit_found(const TopkEmit& e, const Part& p) {
  constexpr std::int64_t kAhead = 32;
  TopkEmitFound list = {e, p.places};
  list.x = reinterpret_cast<const float*>(p.found);
  kernels::topk_emit_found(list, 0, p.tally.inside);
  const std::uint32_t *place = p.places, *const end = p.places + e.count;
  for (std::int64_t i = 0; p.begin + i < p.end; i += kSegment) {
    const std::uint32_t* const after = std::lower_bound(place, end, i + kSegment);
    e.counts[(p.begin + i) / kSegment] = std::int32_t(after - place);
    place = after;
  }
  if (!e.residual) return;
  for (place = p.places; place < end; ++place) {
    if (end - place > kAhead) __builtin_prefetch(e.residual + p.begin + place[kAhead], 1);
    e.residual[p.begin + *place] = 0.0f;
  }
}

void topk(const Topk& t, int threads) {
  count_call();
  if (t.n == 0) return;
  Search search = prepare(t, threads);
  scan(t, search);
  const Choice choice = choose(t, search);
  const std::vector<TopkEmit> emits = emissions(t, choice.selection);
  parallel_tasks(part_count(search), [&](int i) {
    Part& p = search.parts[std::size_t(i)];
    if (choice.collected)
      emit_found(emits[std::size_t(i)], p);
    else
      kernels::topk_emit(emits[std::size_t(i)], p.begin, p.end);
  });
}

void topk_encode(const float* x, Maybe<float> values, Maybe<std::uint16_t> indices, std::int32_t* counts, Size k,
                 Size n, int threads) {
  topk({{nullptr, nullptr, nullptr}, x, values.data, indices.data, counts, k, n}, threads);
}
GRADWIRE_OPERATION(topk_encode)

void topk_encode_feedback(float* grad, float* residual, Maybe<float> values, Maybe<std::uint16_t> indices,
                          std::int32_t* counts, Maybe<std::int32_t> status, Size k, Size n, int threads) {
  topk({{grad, residual, status.data}, residual, values.data, indices.data, counts, k, n}, threads);
}
GRADWIRE_OPERATION(topk_encode_feedback)

// The largest of each of many tiles.

constexpr std::int64_t kLanes = 16;

struct TileTopk {
  const float* x;  // `size` elements a tile
  float* values;   // k a tile
  std::uint16_t* places;
  std::int64_t size, k;
};

std::uint32_t key_at(const float* x, std::int64_t i) {
  std::uint32_t word;
  std::memcpy(&word, x + i, sizeof word);
  return word & kLargest;
}

// The k-th largest of `keys`, which are put in another order.
std::uint32_t largest_of_rank(std::uint32_t* keys, std::int64_t count, std::int64_t k) {
  std::nth_element(keys, keys + k - 1, keys + count, [](std::uint32_t a, std::uint32_t b) { return a > b; });
  return keys[k - 1];
}

// One thread's room.
struct Room {
  std::vector<std::uint32_t> found, places, keys;

  explicit Room(std::int64_t size)
      : found(std::size_t(size + kLanes)), places(std::size_t(size + kLanes)), keys(std::size_t(size)) {}
};

// A magnitude that k elements reach: the k-th largest of the maxima of at least 2 k groups; 0 where groups are too few.
std::uint32_t reached(const TileTopk& t, const float* x, Room& room) {
  std::int64_t groups = kLanes;
  while (groups < 2 * t.k) groups *= 2;
  if (4 * groups > t.size) return 0;
  std::int32_t* const maxima = reinterpret_cast<std::int32_t*>(room.keys.data());
  std::fill_n(maxima, groups, 0);
  std::int64_t i = 0;
  for (; t.size - i >= groups; i += groups)
    for (std::int64_t g = 0; g < groups; ++g) maxima[g] = std::max(maxima[g], std::int32_t(key_at(x, i + g)));
  return largest_of_rank(room.keys.data(), groups, t.k);
}

// Everything that reaches `floor`, with its place; returns how many there are.
std::int64_t collect(const TileTopk& t, const float* x, std::uint32_t floor, Room& room) {
  if (floor == 0) {
    std::memcpy(room.found.data(), x, sizeof(float) * std::size_t(t.size));
    std::iota(room.places.begin(), room.places.begin() + t.size, 0u);
    return t.size;
  }
  Tally tally = {0, 0};
  const Bracket bracket = {floor - 1, kLargest, room.found.data(), room.places.data(), t.size + kLanes, &tally};
  kernels::topk_scan({bracket, x}, 0, t.size);
  return tally.inside;
}

void choose(const TileTopk& t, const float* x, float* values, std::uint16_t* places, Room& room) {
  const std::int64_t count = collect(t, x, reached(t, x, room), room);
  const auto key = [&](std::int64_t i) { return room.found[std::size_t(i)] & kLargest; };
  for (std::int64_t i = 0; i < count; ++i) room.keys[std::size_t(i)] = key(i);
  const std::uint32_t least = largest_of_rank(room.keys.data(), count, t.k);
  const auto larger = std::count_if(room.keys.begin(), room.keys.begin() + t.k, [=](auto one) { return one > least; });
  std::int64_t ties = t.k - larger;
  for (std::int64_t i = 0, to = 0; to < t.k; ++i) {
    if (key(i) < least || (key(i) == least && ties-- <= 0)) continue;
    std::memcpy(values + to, &room.found[std::size_t(i)], sizeof(float));
    places[to++] = std::uint16_t(room.places[std::size_t(i)]);
  }
}

void tile_topk(const float* x, float* values, std::uint16_t* places, Size size, Size k, Size n, int threads) {
  count_call();
  if (n == 0) return;
  const TileTopk t = {x, values, places, size, k / (n / size)};
  parallel_for(n, size, threads, [&](std::int64_t begin, std::int64_t end, int) {
    Room room(size);
    for (Size tile = begin / size; tile < end / size; ++tile)
      choose(t, x + tile * size, values + tile * t.k, places + tile * t.k, room);
  });
}
GRADWIRE_OPERATION(tile_topk)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(selection) {
  using namespace selftest;
  const auto places = [](Buffers& x, Size n) {
    return reinterpret_cast<std::int32_t*>(x.bytes.data() + Buffers::row_bytes(n) / 4 * 4);
  };
  const auto indices = [](Buffers& x) { return reinterpret_cast<std::uint16_t*>(x.bytes.data()); };
  for (const Size divisor : {1, 3, 100}) {
    compare(target, "topk", [&](Buffers& x, Size n) {
      topk({{nullptr, nullptr, nullptr}, x.a.data(), x.c.data(), indices(x), places(x, n), n / divisor, n}, 1);
    });
    compare(target, "topk with feedback", [&](Buffers& x, Size n) {
      const Feedback feedback = {x.a.data(), x.b.data(), x.status.data()};
      topk({feedback, x.b.data(), x.c.data(), indices(x), places(x, n), n / divisor, n}, 1);
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
