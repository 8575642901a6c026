// Marked elements, and what exceeds a threshold, on a CPU: the kernels, and the operations of ops.py.
#include "sparse.h"

namespace gradwire {

// Marks |x| >= s in `whole`, and of the others those with |x| > u s in the base, u random in (0, 1).
struct MarkDrawn : Marks {
  Marks whole;
  const float* x;
  float s;
  std::uint64_t key, step;
};

// `starts`: how many marks there are before each segment, and in the end how many in all.
struct TakeMarked {
  const float* x;
  const std::uint8_t* bitmap;
  const std::int64_t* starts;
  float* values;
  std::uint16_t* indices;  // or null
  float* left;             // x itself, to be 0 where it was taken, or null
};
GRADWIRE_KERNEL_SECOND(take_marked, TakeMarked)

// Where marked elements of one segment go: from slot `count` on, which grows. There is room for 16 more than there are.
struct Taken {
  float* values;
  std::uint16_t* indices;
  std::int64_t* count;
};

// As of MarkBeyond, within one segment.
struct TakeBeyond {
  const float* x;
  float high, low;
  Taken taken;
};
GRADWIRE_KERNEL_SECOND(take_beyond, TakeBeyond)

// As of MarkDrawn, within one segment.
struct TakeDrawn {
  const float* x;
  float s;
  std::uint64_t key, step;
  Taken whole, drawn;
};
GRADWIRE_KERNEL_SECOND(take_drawn, TakeDrawn)

// All elements: 0 where they are not marked.
struct SpreadMarked {
  const float* x;
  const std::uint8_t* bitmap;
  float* values;
  float* left;  // as of TakeMarked
};
GRADWIRE_KERNEL_SECOND(spread_marked, SpreadMarked)

// What exceeds a threshold in a range of whole segments.
struct ThresholdScan : Feedback {  // without feedback grad and residual are null
  const float* x;                  // with feedback the residual
  std::uint32_t least;             // magnitudes above it are sent, as bits without the sign
  float level;                     // where it is not 0: magnitudes from d * level on are sent instead
  std::uint8_t* bitmap;
  std::int32_t* counts;            // of each segment
};
GRADWIRE_KERNEL_SECOND(threshold_scan, ThresholdScan)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/compensate.h"
#include "kernels/dither.h"
#include "kernels/philox_words.h"

namespace gradwire::GRADWIRE_TARGET {

// The bits that mark elements, 16 at a time.

// Writes the bits of 16 elements of which `count` exist; returns how many are set.
GRADWIRE_INLINE int put_marks(std::uint8_t* bitmap, std::int64_t i, std::uint16_t marks, int count) {
  std::memcpy(bitmap + i / 8, &marks, count > 8 ? 2 : 1);
  return __builtin_popcount(marks);
}

GRADWIRE_INLINE std::uint16_t bits_below(Mask m, int count) {
  return std::uint16_t(bits(m) & bits_of_count(count));
}

// The same without the lanes that `m` selects.
GRADWIRE_INLINE std::uint16_t bits_outside(Mask m, int count) {
  return std::uint16_t(~bits(m) & bits_of_count(count));
}

// Marks what is not between two thresholds: one pass that reads the tensor and writes a bit an element.

GRADWIRE_INLINE int mark_beyond_step(const MarkBeyond& k, std::int64_t i, int count) {
  const F32 x = load_ahead(k.x + i, count);
  const Mask between = gt(x, set(-k.low)) & lt(x, set(k.high));
  return put_marks(k.bitmap, i, bits_outside(between, count), count);
}

void mark_beyond(const MarkBeyond& args, std::int64_t begin, std::int64_t end) {
  const MarkBeyond k = args;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t stop = end - i < kMarkSegment ? end : i + kMarkSegment, segment = i / kMarkSegment;
    std::int32_t found = 0;
    for (; stop - i >= kLanes; i += kLanes) found += mark_beyond_step(k, i, kLanes);
    if (i < stop) found += mark_beyond_step(k, i, int(stop - i)), i = stop;
    k.counts[segment] = found;
  }
}

// Marks elements at random, each with the probability |x| / s: |x| > u s, with u = (w + 2^31 + 1/2) / 2^32 of a random
// int32 w, in float64. Float32 decides all but a few: what is nearer to the edge than its error is looked at again.

constexpr std::int64_t kDrawn = 1024;  // words drawn at a time

// Below this the products of float32 could be subnormal, and then their error is not a share of them.
constexpr float kSureFrom = 0x1p-90f;

GRADWIRE_INLINE std::uint16_t drawn_one_by_one(const MarkDrawn& k, std::int64_t i, const std::uint32_t* words,
                                               std::uint16_t doubtful) {
  std::uint16_t marks = 0;
  for (std::uint32_t left = doubtful; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const double u = (double(words[lane] ^ 0x80000000) + 0.5) * 0x1p-32;
    if (u * double(k.s) < double(std::fabs(k.x[i + lane]))) marks = std::uint16_t(marks | 1u << lane);
  }
  return marks;
}

struct Found {
  std::int32_t whole, drawn;
};

GRADWIRE_INLINE void mark_drawn_step(const MarkDrawn& k, std::int64_t i, const std::uint32_t* words, int count,
                                     Found& found) {
  const F32 size = as_f32(abs_bits(load_ahead(k.x + i, count)));
  const F32 least = from_i32(shr(load_u32(words) ^ set_u32(0x80000000), 8)) * set(0x1p-24f);
  const F32 s = set(k.s), most = least + set(0x1p-24f);
  const std::uint16_t whole = bits_below(ge(size, s), count);
  std::uint16_t kept = bits_below(gt(size, most * s * set(1 + 0x1p-21f)), count);
  std::uint16_t left = bits_below(lt(size, least * s * set(1 - 0x1p-21f)), count);
  if (k.s < kSureFrom) kept = 0, left = 0;
  const std::uint16_t doubtful = std::uint16_t(~(whole | kept | left) & bits_of_count(count));
  if (__builtin_expect(doubtful != 0, 0))
    kept = std::uint16_t(kept | drawn_one_by_one(k, i, words, doubtful));
  found.whole += put_marks(k.whole.bitmap, i, whole, count);
  found.drawn += put_marks(k.bitmap, i, std::uint16_t(kept & ~whole), count);
}

// Writes the marked elements side by side, and the low 16 bits of their places.

// `room`: the slots from `to` on that belong to this segment. A bulk store writes all 16 of them.
GRADWIRE_INLINE int take_step(const TakeMarked& k, std::int64_t i, std::uint16_t marks, std::int64_t to,
                              std::int64_t room) {
  if (room >= kLanes) {
    const Mask marked = mask_of(marks);
    const F32 x = load(k.x + i);
    if (k.left && marks != 0) store(k.left + i, select(marked, set(0.0f), x));
    if (k.indices) store_front_u16(k.indices + to, set_u32(std::uint32_t(i)) + iota(), marked);
    return store_front(reinterpret_cast<std::uint32_t*>(k.values) + to, as_u32(x), marked);
  }
  int taken = 0;
  for (std::uint32_t rest = marks; rest != 0 && taken < room; rest &= rest - 1, ++taken) {
    const std::int64_t place = i + __builtin_ctz(rest);
    const std::uint16_t low = std::uint16_t(place);
    std::memcpy(k.values + to + taken, k.x + place, sizeof(float));
    if (k.indices) std::memcpy(k.indices + to + taken, &low, sizeof low);
    if (k.left) k.left[place] = 0.0f;
  }
  return taken;
}

// 64 bits of the map, or what is left of it.
GRADWIRE_INLINE std::uint64_t marks_at(const std::uint8_t* bitmap, std::int64_t i, std::int64_t end) {
  std::uint64_t word = 0;
  if (end - i >= 64) {
    std::memcpy(&word, bitmap + i / 8, 8);
    return word;
  }
  std::memcpy(&word, bitmap + i / 8, std::size_t((end - i + 7) / 8));
  return word & ((std::uint64_t(1) << (end - i)) - 1);
}

// The marked ones of 64 elements; returns how many.
GRADWIRE_INLINE std::int64_t take_word(const TakeMarked& k, std::int64_t i, std::uint64_t word, std::int64_t stop,
                                       std::int64_t to, std::int64_t after) {
  const std::int64_t start = to;
  if (word == 0) return 0;
  // Where it makes no difference how many there are, no branch asks.
  if (stop - i >= 64 && after - to >= 64) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part)
      to += take_step(k, i + part * kLanes, std::uint16_t(word >> 16 * part), to, kLanes);
    return to - start;
  }
  for (std::int64_t j = i; word != 0; j += kLanes, word >>= kLanes) {
    // Of fewer than 16 elements at the end of a tensor 16 cannot be loaded.
    const std::int64_t most = stop - j >= kLanes ? kMarkSegment : kLanes - 1;
    to += take_step(k, j, std::uint16_t(word), to, after - to < most ? after - to : most);
  }
  return to - start;
}

void take_marked(const TakeMarked& args, std::int64_t begin, std::int64_t end) {
  const TakeMarked k = args;
  for (std::int64_t first = begin; first < end; first += kMarkSegment) {
    const std::int64_t stop = end - first < kMarkSegment ? end : first + kMarkSegment;
    std::int64_t to = k.starts[first / kMarkSegment];
    const std::int64_t after = k.starts[first / kMarkSegment + 1];
    for (std::int64_t i = first; i < stop; i += 64)
      to += take_word(k, i, marks_at(k.bitmap, i, stop), stop, to, after);
  }
}

// What is not between two thresholds, side by side, in one pass: a little is marked, and taken while it is in the cache.

constexpr std::int64_t kTakeBlock = 1024;

// The marked elements of a block whose first one is `first`. Behind the last entry there is room for 16 more.
GRADWIRE_INLINE void take_block(const Taken& taken, const float* x, const std::uint8_t* bitmap, std::int64_t first,
                                std::int64_t stop) {
  const TakeMarked take = {x, bitmap, nullptr, taken.values, taken.indices, nullptr};
  for (std::int64_t i = first; i < stop; i += 64)
    *taken.count += take_word(take, i, marks_at(bitmap, i - first, stop - first), stop, *taken.count,
                              *taken.count + kMarkSegment);
}

void take_beyond(const TakeBeyond& args, std::int64_t begin, std::int64_t end) {
  const TakeBeyond k = args;
  std::uint8_t bitmap[kTakeBlock / 8];
  for (std::int64_t first = begin; first < end; first += kTakeBlock) {
    const std::int64_t count = end - first < kTakeBlock ? end - first : kTakeBlock;
    const MarkBeyond mark = {{bitmap, nullptr}, k.x + first, k.high, k.low};
    std::int64_t i = 0;
    for (; count - i >= kLanes; i += kLanes) mark_beyond_step(mark, i, kLanes);
    if (i < count) mark_beyond_step(mark, i, int(count - i));
    take_block(k.taken, k.x, bitmap, first, first + count);
  }
}

// What is drawn, side by side, in one pass.

static_assert(kDrawn == kTakeBlock, "a block is drawn and taken");

void take_drawn(const TakeDrawn& args, std::int64_t begin, std::int64_t end) {
  const TakeDrawn k = args;
  const PhiloxStream stream = philox_stream(k.key, k.step);
  std::uint32_t words[kDrawn];
  std::uint8_t whole[kDrawn / 8], drawn[kDrawn / 8];
  for (std::int64_t first = begin; first < end; first += kDrawn) {
    const std::int64_t count = end - first < kDrawn ? end - first : kDrawn;
    const MarkDrawn mark = {{drawn, nullptr}, {whole, nullptr}, k.x + first, k.s, k.key, k.step};
    philox_words(words, std::uint64_t(first / 4), (count + kPhiloxWords - 1) / kPhiloxWords, stream);
    Found found = {0, 0};
    std::int64_t i = 0;
    for (; count - i >= kLanes; i += kLanes) mark_drawn_step(mark, i, words + i, kLanes, found);
    if (i < count) mark_drawn_step(mark, i, words + i, int(count - i), found);
    if (found.whole > 0) take_block(k.whole, k.x, whole, first, first + count);
    if (found.drawn > 0) take_block(k.drawn, k.x, drawn, first, first + count);
  }
}

// The marked elements at their own places, 0 elsewhere.

GRADWIRE_INLINE void spread_marked_step(const SpreadMarked& k, std::int64_t i, int count) {
  std::uint16_t marks = 0;
  std::memcpy(&marks, k.bitmap + i / 8, count > 8 ? 2 : 1);
  const Mask marked = mask_of(marks);
  const F32 x = load_ahead(k.x + i, count);
  store(k.values + i, select(marked, x, set(0.0f)), count);
  if (k.left) store(k.left + i, select(marked, set(0.0f), x), count);
}

GRADWIRE_RANGE_KERNEL(spread_marked, SpreadMarked, kLanes)

// The first pass over what a threshold looks at: a bit for each element and a count a segment; with feedback the sum.

template <bool kDithered>
GRADWIRE_INLINE Mask exceeds(const ThresholdScan& k, std::int64_t i, F32 x) {
  if (kDithered) return ge(abs_bits(x), as_u32(set(k.level) * dither(i)));
  return gt(abs_bits(x), set_u32(k.least));
}

template <bool kDithered>
GRADWIRE_INLINE int threshold_step(const ThresholdScan& k, std::int64_t i, int count, U32& worst) {
  const F32 x = k.grad ? compensate(k, i, count, worst) : load_ahead(k.x + i, count);
  if (k.grad) store(k.residual + i, x, count);
  return put_marks(k.bitmap, i, bits_below(exceeds<kDithered>(k, i, x), count), count);
}

template <bool kDithered>
GRADWIRE_INLINE void threshold_scan_of(const ThresholdScan& args, std::int64_t begin, std::int64_t end) {
  const ThresholdScan k = args;
  U32 worst = set_u32(0);
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t stop = end - i < kMarkSegment ? end : i + kMarkSegment, segment = i / kMarkSegment;
    std::int32_t found = 0;
    for (; stop - i >= kLanes; i += kLanes) found += threshold_step<kDithered>(k, i, kLanes, worst);
    if (i < stop) found += threshold_step<kDithered>(k, i, int(stop - i), worst), i = stop;
    k.counts[segment] = found;
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

void threshold_scan(const ThresholdScan& args, std::int64_t begin, std::int64_t end) {
  if (args.level > 0) return threshold_scan_of<true>(args, begin, end);
  threshold_scan_of<false>(args, begin, end);
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "bits.h"
#include "marks.h"
#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

void mark_beyond(const float* x, std::uint8_t* bitmap, std::int32_t* counts, double high, double low, Size n,
                 int threads) {
  run(kernels::mark_beyond, {{bitmap, counts}, x, float(high), float(low)}, n, kMarkSegment, threads);
}
GRADWIRE_OPERATION(mark_beyond)

void take_marked(const float* x, const std::uint8_t* bitmap, const std::int32_t* counts, Maybe<float> values,
                 Maybe<std::uint16_t> indices, Size k, Size n, int threads) {
  const auto starts = starts_of(counts, mark_segments(n), k);
  run(kernels::take_marked, {x, bitmap, starts.data(), values.data, indices.data, nullptr}, n, kMarkSegment, threads);
}
GRADWIRE_OPERATION(take_marked)

// Marked elements written side by side in one pass over the tensor, however many there are.

// The entries that there is room for; `counts` says how many there are in each segment.
struct EntryList {
  float* values;
  std::uint16_t* indices;
  std::int32_t* counts;
  std::int64_t room;
};

// The entries of one segment before it is known where they belong.
struct Segment {
  static constexpr std::int64_t kRoom = kMarkSegment + 16;
  float values[kRoom];
  std::uint16_t indices[kRoom];
  std::int64_t count;

  Taken empty() {
    count = 0;
    return {values, indices, &count};
  }

  void append(const EntryList& to, std::int64_t first) const {
    const std::int64_t there = std::clamp<std::int64_t>(to.room - first, 0, count);
    if (there == 0) return;
    std::memcpy(to.values + first, values, sizeof(float) * std::size_t(there));
    std::memcpy(to.indices + first, indices, sizeof(std::uint16_t) * std::size_t(there));
  }
};

// Memory that a thread keeps: fetching fresh pages takes longer than filling them.
Segment& scratch(int which) {
  thread_local std::unique_ptr<Segment> segments[2];
  if (!segments[which]) segments[which] = std::make_unique<Segment>();
  return *segments[which];
}

void take_beyond(const float* x, std::int32_t* counts, Maybe<float> values, Maybe<std::uint16_t> indices, double high,
                 double low, Size k, Size n, int threads) {
  count_call();
  const EntryList entries = {values.data, indices.data, counts, k};
  parallel_append(
      n, kMarkSegment, threads,
      [&](std::int64_t begin, std::int64_t end) {
        Segment& found = scratch(0);
        kernels::take_beyond({x, float(high), float(low), found.empty()}, begin, end);
        counts[begin / kMarkSegment] = std::int32_t(found.count);
        return found.count;
      },
      [&](std::int64_t, std::int64_t, std::int64_t first, std::int64_t) { scratch(0).append(entries, first); });
}
GRADWIRE_OPERATION(take_beyond)

void take_drawn(const float* x, std::int32_t* whole_counts, Maybe<float> whole_values,
                Maybe<std::uint16_t> whole_indices, std::int32_t* counts, Maybe<float> values,
                Maybe<std::uint16_t> indices, double s, Size key, Size step, Size whole_k, Size k, Size n, int threads) {
  count_call();
  const EntryList all = {whole_values.data, whole_indices.data, whole_counts, whole_k};
  const EntryList some = {values.data, indices.data, counts, k};
  constexpr int kHalf = 32;  // bits for each of two numbers
  parallel_append(
      n, kMarkSegment, threads,
      [&](std::int64_t begin, std::int64_t end) {
        Segment &whole = scratch(0), &drawn = scratch(1);
        kernels::take_drawn({x, float(s), std::uint64_t(key), std::uint64_t(step), whole.empty(), drawn.empty()}, begin, end);
        whole_counts[begin / kMarkSegment] = std::int32_t(whole.count);
        counts[begin / kMarkSegment] = std::int32_t(drawn.count);
        return whole.count | drawn.count << kHalf;
      },
      [&](std::int64_t, std::int64_t, std::int64_t first, std::int64_t) {
        scratch(0).append(all, first & ((std::int64_t{1} << kHalf) - 1));
        scratch(1).append(some, first >> kHalf);
      });
}
GRADWIRE_OPERATION(take_drawn)

// What exceeds a threshold, as one stream of bytes.

struct Threshold : Feedback {  // without feedback grad and residual are null
  const float* x;              // with feedback the residual
  float threshold;
  float level;  // where it is not 0, in place of the threshold, times a dither
  std::int32_t* used;
  std::uint8_t* stream;  // 8 + 4 n bytes
};

struct ThresholdAddDecoded {
  float* out;
  float scale;
};

enum Form : std::int32_t { kDense = 0, kBitmap = 1, kBlock = 2 };

constexpr std::int64_t kHead = 8;

std::int64_t size_of(std::int32_t form, std::int64_t n, std::int64_t k) {
  if (form == kDense) return kHead + 4 * k;
  return kHead + 4 * k + (form == kBitmap ? (n + 7) / 8 : 2 * k + 4 * mark_segments(n));
}

Form smallest(std::int64_t n, std::int64_t k) {
  Form best = kDense;
  std::int64_t least = size_of(kDense, n, n);
  for (const Form form : {kBitmap, kBlock})
    if (size_of(form, n, k) < least) best = form, least = size_of(form, n, k);
  return best;
}

// Memory that a thread keeps for its next call, as fetching fresh pages takes longer than filling them.
std::vector<std::uint8_t>& scratch_bytes(std::int64_t size) {
  thread_local std::vector<std::uint8_t> bytes;
  if (std::int64_t(bytes.size()) < size) bytes.resize(std::size_t(size));
  return bytes;
}

// The pass over the tensor, which marks and counts, and the one that writes the values and what says where they are.
class ExceedingEntries {
 public:
  ExceedingEntries(const Threshold& t, std::int64_t n)
      : t_(t), n_(n), counts_(std::size_t(mark_segments(n))), bitmap_(scratch_bytes((n + 63) / 64 * 8)) {
    std::memcpy(&least_, &t.threshold, sizeof least_);
    least_ &= 0x7fffffff;
  }

  void encode(int threads) {
    parallel_twice(
        n_, kMarkSegment, threads,
        [&](std::int64_t begin, std::int64_t end, std::int64_t) {
          kernels::threshold_scan({t_, t_.x, least_, t_.level, bitmap_.data(), counts_.data()}, begin, end);
        },
        [&] { lay_out(); }, [&](std::int64_t begin, std::int64_t end, std::int64_t) { write(begin, end); });
  }

 private:
  void lay_out() {
    starts_ = starts_of(counts_.data(), mark_segments(n_), n_);
    form_ = smallest(n_, starts_.back());
    const std::int64_t sent = form_ == kDense ? n_ : starts_.back();
    const std::int32_t head[2] = {form_, std::int32_t(sent)};
    std::memcpy(t_.stream, head, sizeof head);
    places_ = t_.stream + kHead + 4 * sent;
    if (form_ == kBlock) std::memcpy(places_, counts_.data(), sizeof(std::int32_t) * counts_.size());
    *t_.used = std::int32_t(size_of(form_, n_, sent));
  }

  void write(std::int64_t begin, std::int64_t end) const {
    float* const values = reinterpret_cast<float*>(t_.stream + kHead);
    float* const left = t_.grad ? t_.residual : nullptr;
    if (form_ == kDense) return kernels::spread_marked({t_.x, bitmap_.data(), values, left}, begin, end);
    if (form_ == kBitmap)
      std::memcpy(places_ + begin / 8, bitmap_.data() + begin / 8, std::size_t((end - begin + 7) / 8));
    std::uint16_t* const indices =
        form_ == kBlock ? reinterpret_cast<std::uint16_t*>(places_ + sizeof(std::int32_t) * counts_.size()) : nullptr;
    kernels::take_marked({t_.x, bitmap_.data(), starts_.data(), values, indices, left}, begin, end);
  }

  const Threshold& t_;
  const std::int64_t n_;
  std::uint32_t least_;
  std::vector<std::int32_t> counts_;  // of each segment
  std::vector<std::uint8_t>& bitmap_;
  std::vector<std::int64_t> starts_;
  Form form_ = kDense;
  std::uint8_t* places_ = nullptr;
};

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

// `j`: how many entries there are before the first of these elements.
void add_bitmap(const ThresholdAddDecoded& t, const Sent& s, std::int64_t n, std::int64_t begin, std::int64_t end,
                std::int64_t j) {
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

void add_bitmap(const ThresholdAddDecoded& t, const Sent& s, std::int64_t n, int threads) {
  const ByteRun bitmap = {s.places, (n + 7) / 8};
  std::vector<std::int64_t> starts(std::size_t(mark_segments(n)));
  parallel_twice(
      n, kMarkSegment, threads,
      [&](std::int64_t begin, std::int64_t end, std::int64_t) {
        kernels::count_ones({bitmap, n, starts.data()}, begin, end);
      },
      [&] { starts = starts_of(starts.data(), mark_segments(n), n); },
      [&](std::int64_t begin, std::int64_t end, std::int64_t) {
        add_bitmap(t, s, n, begin, end, starts[std::size_t(begin / kMarkSegment)]);
      });
}

void add_block(const ThresholdAddDecoded& t, const Sent& s, std::int64_t n, int threads) {
  const SparsePart part = {s.values, s.places + 4 * mark_segments(n), s.places, s.k, nullptr};
  add_parts({part}, t.out, n, t.scale, threads);
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
    parallel_for(k, 64, threads, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
      add_run(t, s, begin, begin, end - begin);
    });
  if (form == kBitmap) add_bitmap(t, s, n, threads);
}

void encode_exceeding(const Threshold& t, std::int64_t n, int threads) {
  count_call();
  ExceedingEntries(t, n).encode(threads);
}

void threshold_encode(const float* x, std::int32_t* used, std::uint8_t* stream, double threshold,
                      Maybe<const float> level, Size n, int threads) {
  encode_exceeding({{nullptr, nullptr, nullptr}, x, float(threshold), value_or(level, 0), used, stream}, n, threads);
}
GRADWIRE_OPERATION(threshold_encode)

void threshold_encode_feedback(float* grad, float* residual, std::int32_t* used, std::uint8_t* stream,
                               double threshold, Maybe<std::int32_t> status, Maybe<const float> level, Size n,
                               int threads) {
  encode_exceeding(
      {{grad, residual, status.data}, residual, float(threshold), value_or(level, 0), used, stream}, n, threads);
}
GRADWIRE_OPERATION(threshold_encode_feedback)

void threshold_add_decoded(Column streams, float* out, double scale, Size ranks, Size length, Size n, int threads) {
  const ThresholdAddDecoded t = {out, float(scale)};
  for (Size w = 0; w < ranks; ++w) add_row(t, {streams.data + w * streams.stride, length}, n, threads);
}
GRADWIRE_OPERATION(threshold_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(marks) {
  using namespace selftest;
  // Marks with their counts, in the first two rows.
  const auto first = [](Buffers& x, Size n) {
    return Marks{x.bytes.data(), reinterpret_cast<std::int32_t*>(x.bytes.data() + Buffers::row_bytes(n) / 4 * 4)};
  };
  check(target, "mark_beyond", kernels::mark_beyond, [&](Buffers& x, Size n) {
    return MarkBeyond{first(x, n), x.a.data(), 1.5f, 0.7f};
  });
  check(target, "spread_marked", kernels::spread_marked, [](Buffers& x, Size) {
    return SpreadMarked{x.a.data(), x.bytes.data(), x.c.data(), x.b.data()};
  });
  for (const bool clears : {false, true})
    compare(target, "take_marked", [&](Buffers& x, Size n) {
      std::int32_t counts[2] = {};  // of the largest tensor here
      const Marks marks = {x.bytes.data(), counts};
      run(kernels::mark_beyond, {marks, x.a.data(), 1.5f, 0.7f}, n, kMarkSegment, 1);
      const auto starts = starts_of(counts, mark_segments(n), n);
      const auto indices = reinterpret_cast<std::uint16_t*>(x.bytes.data() + 2 * Buffers::row_bytes(n));
      float* const left = clears ? x.a.data() : nullptr;
      run(kernels::take_marked, {x.a.data(), marks.bitmap, starts.data(), x.c.data(), indices, left}, n, kMarkSegment,
          1);
    });
  const auto counts = [](Buffers& x, Size row, Size n) {
    return reinterpret_cast<std::int32_t*>(x.bytes.data() + row * Buffers::row_bytes(n));
  };
  const auto indices = [&](Buffers& x, Size row, Size n) {
    return Maybe<std::uint16_t>{reinterpret_cast<std::uint16_t*>(counts(x, row, n) + 2)};
  };
  compare(target, "take_beyond", [&](Buffers& x, Size n) {
    take_beyond(x.a.data(), counts(x, 0, n), {x.c.data()}, indices(x, 0, n), 1.5, 0.7, n / 2, n, 1);
  });
  compare(target, "take_drawn", [&](Buffers& x, Size n) {
    take_drawn(x.a.data(), counts(x, 0, n), {x.b.data()}, indices(x, 0, n), counts(x, 1, n), {x.c.data()},
               indices(x, 1, n), 2.5, 0x9876543210, 3, n / 2, n / 2, n, 1);
  });
  for (const float level : {0.0f, 0.9f}) {
    const Maybe<const float> given = {level == 0 ? nullptr : &level};
    compare(target, "threshold_encode", [&](Buffers& x, Size n) {
      threshold_encode(x.a.data(), counts(x, 2, n), x.bytes.data(), 1.5, given, n, 1);
    });
    compare(target, "threshold_encode with feedback", [&](Buffers& x, Size n) {
      // What is sent of a NaN are its bits, and these may differ.
      for (std::vector<float>* values : {&x.a, &x.b})
        for (float& value : *values) value = value == value ? value : 1.0f;
      threshold_encode_feedback(x.a.data(), x.b.data(), counts(x, 2, n), x.bytes.data(), 1.5, {x.status.data()}, given,
                                n, 1);
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
