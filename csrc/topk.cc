#include "topk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "dispatch.h"
#include "radix_select.h"

namespace gradwire {

namespace {

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
      active().topk_scan_feedback({t, b}, p.begin, p.end);
    else
      active().topk_scan({b, t.x}, p.begin, p.end);
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
  active().topk_emit_found(list, 0, p.tally.inside);
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

}  // namespace

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
      active().topk_emit(emits[std::size_t(i)], p.begin, p.end);
  });
}

}  // namespace gradwire
