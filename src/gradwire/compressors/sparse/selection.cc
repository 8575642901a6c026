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
#include <atomic>
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

// 32-bit words whose low 31 bits are keys: the bits of a float without its sign are one.
struct Span {
  const void* words;
  std::int64_t count;
};

constexpr int kDigit = 11;
constexpr std::uint32_t kBins = 1u << kDigit;

// Of few keys the places of a long digit take longer than the keys themselves.
constexpr int kShortDigit = 8;
constexpr std::int64_t kFewKeys = 32768;

// Neighbours are counted in different places: equal keys in a row would otherwise wait for each other's sum.
constexpr int kWays = 4;

std::uint32_t key_in(const Span& span, std::int64_t i) {
  std::uint32_t word;
  std::memcpy(&word, static_cast<const char*>(span.words) + i * std::int64_t(sizeof word), sizeof word);
  return word & 0x7fffffff;
}

// How many keys have each digit; the bin behind those of a digit is for keys outside.
struct Histogram {
  std::uint32_t ways[kWays][kBins + 1];

  Histogram() {}  // clear() comes first, as a digit may have few bins

  void clear(std::uint32_t bins) {
    for (auto& way : ways) std::fill_n(way, bins + 1, 0u);
  }

  void add(const Span& span, std::uint32_t low, int shift, std::uint32_t bins) {
    const auto count = [&](std::uint32_t* way, std::int64_t i) {
      ++way[std::min((key_in(span, i) - low) >> shift, bins)];
    };
    std::int64_t i = 0;
    for (; span.count - i >= kWays; i += kWays)
      for (int way = 0; way < kWays; ++way) count(ways[way], i + way);
    for (; i < span.count; ++i) count(ways[0], i);
  }

  std::int64_t at(std::uint32_t bin) const {
    std::int64_t sum = 0;
    for (const auto& way : ways) sum += way[bin];
    return sum;
  }
};

// The k-th largest, 1 <= k, of the keys from `low` to `low + 2^bits - 1`, exactly, by counting: a digit at a time, from
// the top. Others are not counted.
class RadixSelect {
 public:
  RadixSelect(std::int64_t k, std::uint32_t low, int bits, int digit = kDigit)
      : k_(k), key_(low), digit_(digit), shift_(bits) {
    begin_digit();
  }

  void clear(Histogram& one) const { one.clear(bins_); }
  void count(const Span& span, Histogram& to) const { to.add(span, key_, shift_, bins_); }

  // One digit more is known. Returns whether all are.
  bool choose(const std::vector<Histogram>& found) {
    std::uint32_t digit = bins_ - 1;
    for (;; --digit) {
      std::int64_t here = 0;
      for (const Histogram& one : found) here += one.at(digit);
      if (k_ <= here || digit == 0) break;
      k_ -= here;
    }
    key_ += digit << shift_;
    if (shift_ == 0) return true;
    begin_digit();
    return false;
  }

  // Without the digits that are not known yet: at most the k-th largest.
  std::uint32_t key() const { return key_; }

 private:
  void begin_digit() {
    bins_ = 1u << std::min(digit_, shift_);
    shift_ = std::max(0, shift_ - digit_);
  }

  std::int64_t k_;
  std::uint32_t key_, bins_ = 0;
  int digit_, shift_;
};

// The k largest magnitudes of a tensor, exactly, and with no scratch memory of the tensor's size.
//
//   1. a sample of the tensor gives a bracket: two magnitudes between which the k-th largest almost certainly lies
//   2. one pass counts what is above the bracket and collects what is inside
//   3. the k-th largest is found among what was collected; if the sample misled, by counting digits of all elements
//   4. what is larger is written out, and as many that equal it as k asks for, those of lowest index
//
// Where k is small the bracket is open above, so all that can be chosen is collected with its place, and step 4 needs
// no second pass. The result depends on the values alone, not on the sample, the threads or the SIMD target.
//
// Steps 2 to 4 are passes of one parallel region: two where little was collected, and up to six.

struct Topk : Feedback {  // without feedback grad and residual are null
  const float* x;         // with feedback the residual
  float* values;
  std::uint16_t* indices;
  std::int32_t* counts;
  std::int64_t k, n;
};

constexpr std::int64_t kSegment = 65536;
constexpr std::int64_t kLine = 16;            // elements of a cache line, sampled together
constexpr std::int64_t kSample = 16384;       // the bracket then holds a percent of the elements
constexpr std::int64_t kSampleShare = 32;     // of fewer elements than are worth so large a sample
constexpr std::int64_t kTooSmall = 4096;      // to be sampled
constexpr std::int64_t kOpenBelow = 32;       // the bracket is open above where k is at most n by this
constexpr std::int64_t kMostCollected = 4;    // of the tensor a thread collects at most a part
constexpr std::int64_t kSelectAlone = kFewKeys;  // of so few keys one thread finds the k-th while others would wake up
constexpr std::int64_t kGroupsEach = 2;       // histograms for each thread
constexpr int kSampleDigits = 2;              // more precisely the bracket need not be known
constexpr std::uint32_t kLargest = 0x7fffffff;

// How far, in standard deviations of the sample's count, the bracket's ends are from where they are expected.
constexpr double kSlack = 5;

// A line from each of equal stretches of the tensor, at a place that looks random: at a fixed distance it could be
// the same column of a matrix every time.
std::vector<std::uint32_t> sample(const Topk& t) {
  const std::int64_t lines = std::max(std::min(kSample, t.n / kSampleShare), kTooSmall / 4) / kLine;
  const std::int64_t stretch = t.n / lines;
  std::vector<std::uint32_t> keys(std::size_t(lines * kLine));
  for (std::int64_t line = 0; line < lines; ++line) {
    const std::uint64_t hash = std::uint64_t(line) * 0x9e3779b97f4a7c15 >> 33;
    const std::int64_t first = line * stretch + std::int64_t(hash) % (stretch - kLine + 1);
    std::uint32_t* const to = keys.data() + line * kLine;
    for (std::int64_t i = 0; i < kLine; ++i) {
      const float value = t.grad ? t.residual[first + i] + t.grad[first + i] : t.x[first + i];
      std::memcpy(to + i, &value, sizeof value);
      to[i] &= kLargest;
    }
  }
  return keys;
}

struct Ends {
  std::uint32_t low, high;
};

Ends ends_of(const std::vector<std::uint32_t>& keys, double share) {
  const double size = double(keys.size()), expected = share * size;
  const double slack = kSlack * (std::sqrt(expected * (1 - share)) + 1);
  std::vector<Histogram> found(1);
  // All digits that were not looked at are 0.
  const auto key_of_rank = [&](double rank) {
    RadixSelect select(std::int64_t(rank), 0, 31, kShortDigit);
    for (int digit = 0; digit < kSampleDigits; ++digit) {
      select.clear(found[0]);
      select.count({keys.data(), std::int64_t(keys.size())}, found[0]);
      select.choose(found);
    }
    return select.key();
  };
  constexpr std::uint32_t kUnknown = (1u << (31 - kSampleDigits * kShortDigit)) - 1;
  return {expected + slack > size ? 0 : key_of_rank(expected + slack),
          share * kOpenBelow <= 1 || expected - slack < 1 ? kLargest : key_of_rank(expected - slack) | kUnknown};
}

// Memory that a thread keeps for its next operation, as fetching fresh pages takes longer than filling them: what it
// was given stays where it is until then.
class Collected {
 public:
  // Room for `size` words, of which keep() says how many are used.
  std::uint32_t* room(std::int64_t size) {
    while (block_ < blocks_.size() && blocks_[block_].size - used_ < size) ++block_, used_ = 0;
    if (block_ == blocks_.size()) {
      const std::int64_t fresh = std::max(size, kBlock);
      blocks_.push_back({std::unique_ptr<std::uint32_t[]>(new std::uint32_t[std::size_t(fresh)]), fresh});
    }
    return blocks_[block_].words.get() + used_;
  }

  void keep(std::int64_t size) { used_ += size, total_ += size; }
  std::int64_t total() const { return total_; }
  void clear() { block_ = 0, used_ = 0, total_ = 0; }

 private:
  static constexpr std::int64_t kBlock = 1 << 18;

  struct Block {
    std::unique_ptr<std::uint32_t[]> words;
    std::int64_t size;
  };

  std::vector<Block> blocks_;
  std::size_t block_ = 0;
  std::int64_t used_ = 0, total_ = 0;
};

// What a thread has collected for the operation of this number.
struct Collection {
  Collected found, places;
  std::uint64_t operation = 0;

  static Collection& of(std::uint64_t operation) {
    thread_local Collection mine;
    if (mine.operation != operation) mine.found.clear(), mine.places.clear(), mine.operation = operation;
    return mine;
  }
};

std::uint64_t next_operation() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

// The elements [begin, end) of a chunk, what was collected there, and how many of them are to be kept.
struct Part {
  std::int64_t begin, end;
  std::uint32_t *found, *places;
  Tally tally;
  std::int64_t larger, equal;
};

int width(std::uint32_t x) { return x == 0 ? 0 : 32 - __builtin_clz(x); }

class TopkSearch {
 public:
  TopkSearch(const Topk& t, int threads) : t_(t), threads_(threads), operation_(next_operation()) {
    if (t.n > kTooSmall) ends_ = ends_of(sample(t), double(t.k) / double(t.n));
    const std::int64_t size = chunk_size(t.n, kSegment, threads);
    for (std::int64_t i = 0; i < t.n; i += size)
      parts_.push_back({i, std::min(i + size, t.n), nullptr, nullptr, {0, 0}, 0, 0});
  }

  void run() {
    parallel_passes(
        std::int64_t(parts_.size()), threads_, [&](std::int64_t i) { work(i); }, [&] { return next(); },
        Order::kToAndFro);
  }

 private:
  enum class Pass { kScan, kDigits, kCount, kEmit };

  bool open() const { return ends_.high == kLargest; }

  void work(std::int64_t i) {
    if (pass_ == Pass::kDigits) return count_digits(i);
    Part& part = parts_[std::size_t(i)];
    if (pass_ == Pass::kScan) scan(part);
    if (pass_ == Pass::kCount) count(part);
    if (pass_ == Pass::kEmit) emit(part, emits_[std::size_t(i)]);
  }

  // What follows the pass that has ended.
  std::int64_t next() {
    if (pass_ == Pass::kScan) return after_scan();
    if (pass_ == Pass::kDigits) return select_.choose(histograms_) ? begin_count(select_.key()) : begin_digit();
    if (pass_ == Pass::kCount) return after_count();
    return 0;
  }

  void scan(Part& p) {
    Collection& mine = Collection::of(operation_);
    const std::int64_t most = p.end - p.begin + kLine;
    const std::int64_t room = mine.found.total() > t_.n / kMostCollected ? kLine : most;
    p.found = mine.found.room(room), p.places = open() ? mine.places.room(room) : nullptr;
    const Bracket b = {ends_.low, ends_.high, p.found, p.places, room, &p.tally};
    if (t_.grad)
      kernels::topk_scan_feedback({t_, b}, p.begin, p.end);
    else
      kernels::topk_scan({b, t_.x}, p.begin, p.end);
    if (p.tally.inside + kLine > room) complete_.store(false, std::memory_order_relaxed);
    const std::int64_t kept = std::min(p.tally.inside, room - kLine);
    mine.found.keep(kept);
    if (open()) mine.places.keep(kept + kLine);  // emit() writes as many behind them
  }

  std::int64_t after_scan() {
    std::int64_t above = 0, inside = 0;
    for (const Part& p : parts_) above += p.tally.above, inside += p.tally.inside;
    among_found_ = complete_.load(std::memory_order_relaxed) && above < t_.k && t_.k <= above + inside;
    if (among_found_) {
      if (inside <= kSelectAlone) return select_alone(t_.k - above);
      select_ = RadixSelect(t_.k - above, ends_.low, width(ends_.high - ends_.low));
      return begin_digit();
    }
    // Many elements may equal the lower end.
    if (t_.k > above + inside) return begin_count(ends_.low);
    return begin_select();
  }

  std::int64_t begin_select() {
    select_ = RadixSelect(t_.k, 0, 31);
    selecting_ = true;
    return begin_digit();
  }

  Span span(const Part& p) const {
    return among_found_ ? Span{p.found, p.tally.inside} : Span{t_.x + p.begin, p.end - p.begin};
  }

  std::int64_t begin_digit() {
    pass_ = Pass::kDigits;
    histograms_.resize(std::min(parts_.size(), std::size_t(threads_ * kGroupsEach)));
    return std::int64_t(histograms_.size());
  }

  // Of a group of neighbouring parts.
  void count_digits(std::int64_t group) {
    const std::size_t groups = histograms_.size(), i = std::size_t(group);
    select_.clear(histograms_[i]);
    for (std::size_t p = parts_.size() * i / groups; p < parts_.size() * (i + 1) / groups; ++p)
      select_.count(span(parts_[p]), histograms_[i]);
  }

  std::int64_t select_alone(std::int64_t k) {
    std::uint32_t largest = ends_.low;
    for (const Part& p : parts_)
      for (std::int64_t i = 0; i < p.tally.inside; ++i) largest = std::max(largest, key_in(span(p), i));
    select_ = RadixSelect(k, ends_.low, width(largest - ends_.low), kShortDigit);
    do {
      histograms_.resize(1);
      count_digits(0);
    } while (!select_.choose(histograms_));
    begin_count(select_.key());
    for (Part& p : parts_) count(p);
    return after_count();
  }

  std::int64_t begin_count(std::uint32_t key) {
    pass_ = Pass::kCount;
    key_ = key;
    return std::int64_t(parts_.size());
  }

  void count(Part& p) const {
    const Span keys = span(p);
    const std::int32_t least = std::int32_t(key_);
    p.larger = among_found_ ? p.tally.above : 0, p.equal = 0;
    // Narrow counts are fast, and without threads a chunk is the whole tensor, which may have more than they hold.
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    for (std::int64_t begin = 0; begin < keys.count; begin += kMost) {
      const std::int64_t end = std::min(begin + kMost, keys.count);
      std::int32_t larger = 0, equal = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int32_t key = std::int32_t(key_in(keys, i));
        larger += key > least, equal += key == least;
      }
      p.larger += larger, p.equal += equal;
    }
  }

  // What each part writes out, side by side.
  std::int64_t after_count() {
    std::int64_t ties = t_.k, equal = 0, place = 0;
    for (const Part& p : parts_) ties -= p.larger, equal += p.equal;
    if (ties > equal && !among_found_ && !selecting_) return begin_select();
    pass_ = Pass::kEmit;
    for (const Part& p : parts_) {
      const std::int64_t taken = std::min(ties, p.equal), count = p.larger + taken;
      emits_.push_back({t_.x, t_.residual, key_, taken, count, t_.values + place, t_.indices + place, t_.counts});
      ties -= taken, place += count;
    }
    return std::int64_t(parts_.size());
  }

  void emit(const Part& p, const TopkEmit& e) const {
    if (!among_found_ || !open()) return kernels::topk_emit(e, p.begin, p.end);
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

  const Topk& t_;
  const int threads_;
  const std::uint64_t operation_;
  Ends ends_ = {0, kLargest};
  Pass pass_ = Pass::kScan;
  std::vector<Part> parts_;
  std::atomic<bool> complete_{true};  // there was room for all that is inside
  bool among_found_ = false;          // the k-th largest is looked for there, and else among all
  bool selecting_ = false;            // among all
  RadixSelect select_{1, 0, 31};
  std::vector<Histogram> histograms_;
  std::uint32_t key_ = 0;  // the smallest magnitude to be kept
  std::vector<TopkEmit> emits_;
};

void topk(const Topk& t, int threads) {
  count_call();
  if (t.n > 0) TopkSearch(t, threads).run();
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
  parallel_for(n, size, threads, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
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
