// INCEPTIONN's tagged streams on a CPU: the kernels, and the operations of ops.py, which says what the bytes are. Where
// each element's code lies depends on all before it, so bytes are counted first.
#include "family.h"

namespace gradwire {

// One range of a stream. `bytes` receives how many its codes take.
struct InceptionnTags {
  const float* x;
  std::uint8_t* tags;
  int bound;
  std::int64_t* bytes;
  Feedback feedback;  // without one its residual is null; with one, that becomes x
};
GRADWIRE_KERNEL_SECOND(inceptionn_tags, InceptionnTags)

// The codes of a range begin at `codes` and end before `end`.
struct InceptionnCodes {
  const float* x;
  const std::uint8_t* tags;
  std::uint8_t *codes, *end;
  int bound;
  float* left;  // x itself, to be what the codes do not say, or null
};
GRADWIRE_KERNEL_SECOND(inceptionn_codes, InceptionnCodes)

struct InceptionnSizes {
  const std::uint8_t* tags;
  std::int64_t* bytes;
};
GRADWIRE_KERNEL_SECOND(inceptionn_sizes, InceptionnSizes)

// Without tags every code is a float32.
struct InceptionnStream {
  const std::uint8_t *tags, *codes, *end;
};

// `places`: where the codes of the range begin in each stream; they move on.
struct InceptionnAddDecoded {
  const InceptionnStream* streams;
  const std::uint8_t** places;
  std::int64_t ranks;
  float* out;
  int bound;
  float scale;
};
GRADWIRE_KERNEL_SECOND(inceptionn_add_decoded, InceptionnAddDecoded)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/compensate.h"
#include "kernels/qsgd_codes.h"

namespace gradwire::GRADWIRE_TARGET {

// How many bytes the codes of tagged elements take.

GRADWIRE_INLINE int bytes_of_tags(std::uint64_t tags) {
  const std::uint64_t low = tags & 0x5555555555555555, high = tags >> 1 & 0x5555555555555555;
  return __builtin_popcountll(low) + 2 * __builtin_popcountll(high) + __builtin_popcountll(low & high);
}

void inceptionn_sizes(const InceptionnSizes& k, std::int64_t begin, std::int64_t end) {
  std::int64_t bytes = 0;
  for (std::int64_t i = begin; i < end; i += 32) {
    const std::int64_t count = end - i < 32 ? end - i : 32;
    std::uint64_t tags = 0;
    std::memcpy(&tags, k.tags + i / 4, std::size_t(count + 3) / 4);
    bytes += bytes_of_tags(count == 32 ? tags : tags & ((std::uint64_t{1} << 2 * count) - 1));
  }
  *k.bytes = bytes;
}

// The tags of elements, 2 bits each, and how many bytes their codes take.

// Each is a part of the one before: what is sent at all, in more than 8 bits, as it is.
struct Classes {
  Mask sent, longer, copied;
};

GRADWIRE_INLINE Classes classes_of(F32 x, int bound) {
  const U32 magnitude = abs_bits(x);
  const std::uint32_t one = 127u << 23, longer = std::uint32_t(134 - bound) << 23;
  return {ge(magnitude, set_u32(std::uint32_t(127 - bound) << 23)),
          ge(magnitude, set_u32(longer < one ? longer : one)), ge(magnitude, set_u32(one))};
}

GRADWIRE_INLINE U32 tags_of(const Classes& c) {
  const U32 small = select(c.longer, set_u32(2), select(c.sent, set_u32(1), set_u32(0)));
  return select(c.copied, set_u32(3), small);
}

template <bool fed>
GRADWIRE_INLINE U32 tags_at(const InceptionnTags& k, std::int64_t i, int count, U32& worst) {
  F32 x;
  if constexpr (fed) {
    x = compensate(k.feedback, i, count, worst);
    store(k.feedback.residual + i, x, count);
  } else {
    x = load_ahead(k.x + i, count);
  }
  return tags_of(classes_of(x, k.bound));
}

template <bool fed>
static inline void write_tags(const InceptionnTags& k, std::int64_t begin, std::int64_t end) {
  U32 worst = set_u32(0);
  std::int64_t i = begin;
  for (; end - i >= 4 * kLanes; i += 4 * kLanes) {
    U32 tags[4];
    for (int j = 0; j < 4; ++j) tags[j] = tags_at<fed>(k, i + j * kLanes, kLanes, worst);
    store_levels<2>(k.tags + i / 4, tags);
  }
  for (; i < end; i += kLanes) {
    const int count = end - i < kLanes ? int(end - i) : kLanes;
    store_levels<2>(k.tags + i / 4, tags_at<fed>(k, i, count, worst), count);
  }
  if (fed && k.feedback.status) flag_nonfinite(k.feedback.status, worst);
}

void inceptionn_tags(const InceptionnTags& args, std::int64_t begin, std::int64_t end) {
  const InceptionnTags k = args;
  if (k.feedback.residual)
    write_tags<true>(k, begin, end);
  else
    write_tags<false>(k, begin, end);
  inceptionn_sizes({k.tags, k.bytes}, begin, end);
}

// Four elements at a time: the byte of their tags says which bytes of their words are sent.

constexpr int kQuad = 4;
constexpr int kQuadBytes = 16;
constexpr std::uint8_t kNothing = 0x80;  // a place from which shuffles take zero

constexpr int bytes_of_tag(int tag) { return (1 << tag) >> 1; }

// For each byte of tags: how long the codes are, from which byte of the words each of theirs comes, and the reverse.
struct Quads {
  std::uint8_t size[256], code[256][kQuadBytes], word[256][kQuadBytes];

  constexpr Quads() : size(), code(), word() {
    for (int tags = 0; tags < 256; ++tags) {
      int at = 0;
      for (int i = 0; i < kQuadBytes; ++i) code[tags][i] = word[tags][i] = kNothing;
      for (int element = 0; element < kQuad; ++element)
        for (int i = 0; i < bytes_of_tag(tags >> 2 * element & 3); ++i, ++at) {
          code[tags][at] = std::uint8_t(4 * element + i);
          word[tags][4 * element + i] = std::uint8_t(at);
        }
      size[tags] = std::uint8_t(at);
    }
  }
};

static constexpr Quads kQuads;

// The tags of up to 16 elements, zero beyond them.
GRADWIRE_INLINE std::uint32_t load_tags(const std::uint8_t* p, int count) {
  std::uint32_t tags = 0;
  std::memcpy(&tags, p, std::size_t(count + 3) / kQuad);
  return count < kLanes ? tags & ((std::uint32_t{1} << 2 * count) - 1) : tags;
}

// The codes of 16 words, one after the other; returns their end.
GRADWIRE_INLINE std::uint8_t* store_quads(std::uint8_t* p, const std::uint8_t* end, U32 words, std::uint32_t tags) {
  if (tags == 0) return p;
  // Whole quads are written, except where they would reach into another thread's part.
  std::uint8_t codes[4 * kQuadBytes], *to[4];
  const bool roomy = end - p >= 4 * kQuadBytes;
  std::uint8_t *const first = roomy ? p : codes, *next = first;
  const std::uint8_t* places[4];
#pragma GCC unroll 4
  for (int quad = 0; quad < 4; ++quad, tags >>= 8) {
    to[quad] = next, places[quad] = kQuads.code[tags & 255];
    next += kQuads.size[tags & 255];
  }
  store_shuffled(to, words, places);
  if (!roomy) std::memcpy(p, codes, std::size_t(next - first));
  return p + (next - first);
}

// The reverse, zeros where nothing was sent. Reads 16 bytes for each quad.
GRADWIRE_INLINE U32 load_quads(const std::uint8_t*& p, std::uint32_t tags) {
  const std::uint8_t *from[4], *places[4];
#pragma GCC unroll 4
  for (int quad = 0; quad < 4; ++quad, tags >>= 8) {
    from[quad] = p, places[quad] = kQuads.word[tags & 255];
    p += kQuads.size[tags & 255];
  }
  return shuffled_bytes(from, places);
}

// What the codes of tagged elements stand for.

GRADWIRE_INLINE U32 spread_tags(std::uint32_t packed) { return shr(set_u32(packed), shl(iota(), 1)) & set_u32(3); }

GRADWIRE_INLINE Table4 units_of(int bound) { return table4(0.0f, 0x1p-24f / float(1 << bound), 0x1p-31f, 0.0f); }

// Without a shift that depends on the class, the sign would have to be looked for in two places.
GRADWIRE_INLINE F32 inceptionn_value(U32 tags, U32 words, Table4 units) {
  const U32 high = shl(words, select(eq(tags, set_u32(2)), set_u32(16), set_u32(24)));
  const F32 magnitude = from_i32(high & set_u32(0x7fffffff)) * lookup(units, tags);
  const U32 fixed = as_u32(magnitude) | (high & set_u32(0x80000000));
  return as_f32(select(eq(tags, set_u32(3)), words, fixed));
}

// The codes of tagged elements, one after the other: 0, 1, 2 or 4 bytes each.

// The float32, or its nearest multiple of the class's unit: for magnitudes below 2^22 that is in the lowest bits of
// the sum with 2^23 and a half. Of what is not sent, anything.
GRADWIRE_INLINE U32 inceptionn_words(const Classes& c, F32 x, float unit) {
  const U32 top = select(c.longer, set_u32(32767), set_u32(127));
  const F32 scaled = as_f32(abs_bits(x)) * select(c.longer, set(0x1p15f), set(unit));
  const U32 nearest = as_u32(scaled + set(0x1.8p23f)) & set_u32(0xffff);
  const U32 fixed = select(gt(nearest, top), top, nearest) | (sar(as_u32(x), 31) & (top + set_u32(1)));
  return select(c.copied, as_u32(x), fixed);
}

GRADWIRE_INLINE std::uint8_t* inceptionn_codes_step(const InceptionnCodes& k, std::uint8_t* p, float unit,
                                                    std::int64_t i, int count) {
  const F32 x = load(k.x + i, count);
  const U32 words = inceptionn_words(classes_of(x, k.bound), x, unit);
  const std::uint32_t packed = load_tags(k.tags + i / kQuad, count);
  if (k.left) {
    const U32 tags = spread_tags(packed), sent = select(eq(tags, set_u32(0)), set_u32(0), words);
    store(k.left + i, x + inceptionn_value(tags, sent, units_of(k.bound)) * set(-1.0f), count);
  }
  return store_quads(p, k.end, words, packed);
}

void inceptionn_codes(const InceptionnCodes& args, std::int64_t begin, std::int64_t end) {
  const InceptionnCodes k = args;
  const float unit = float(1 << k.bound);
  std::uint8_t* p = k.codes;
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) p = inceptionn_codes_step(k, p, unit, i, kLanes);
  if (i < end) inceptionn_codes_step(k, p, unit, i, int(end - i));
}

// Adds the elements of tagged streams, or of some that hold them as they are, rank after rank to a part of the sum
// that stays in the L1 cache.

constexpr std::int64_t kInceptionnSum = 2048;

// What a stream from outside lacks is read as zero.
GRADWIRE_INLINE U32 load_last_quads(const std::uint8_t*& p, const std::uint8_t* end, std::uint32_t tags) {
  std::uint8_t bytes[5 * kQuadBytes] = {};
  if (end > p) std::memcpy(bytes, p, std::size_t(end - p < 4 * kQuadBytes ? end - p : 4 * kQuadBytes));
  const std::uint8_t* at = bytes;
  const U32 words = load_quads(at, tags);
  p = end - p < at - bytes ? end : p + (at - bytes);
  return words;
}

GRADWIRE_INLINE void add_tagged_step(const InceptionnAddDecoded& k, const InceptionnStream& s, const std::uint8_t*& p,
                                     Table4 units, std::int64_t i, int count) {
  const std::uint32_t packed = load_tags(s.tags + i / kQuad, count);
  const U32 words = s.end - p >= 4 * kQuadBytes ? load_quads(p, packed) : load_last_quads(p, s.end, packed);
  const U32 tags = spread_tags(packed);
  store(k.out + i, load(k.out + i, count) + inceptionn_value(tags, words, units) * set(k.scale), count);
}

static const std::uint8_t* add_tagged(const InceptionnAddDecoded& k, const InceptionnStream& s, const std::uint8_t* p,
                                      std::int64_t begin, std::int64_t end) {
  const Table4 units = units_of(k.bound);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) add_tagged_step(k, s, p, units, i, kLanes);
  if (i < end) add_tagged_step(k, s, p, units, i, int(end - i));
  return p;
}

static void add_floats(const InceptionnAddDecoded& k, const InceptionnStream& s, std::int64_t begin,
                       std::int64_t end) {
  const float* const x = reinterpret_cast<const float*>(s.codes);
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) store(k.out + i, load(k.out + i) + load(x + i) * set(k.scale));
  const int rest = int(end - i);
  if (rest > 0) store(k.out + i, load(k.out + i, rest) + load(x + i, rest) * set(k.scale), rest);
}

void inceptionn_add_decoded(const InceptionnAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const InceptionnAddDecoded k = args;
  for (std::int64_t i = begin; i < end; i += kInceptionnSum) {
    const std::int64_t next = end - i < kInceptionnSum ? end : i + kInceptionnSum;
    for (std::int64_t w = 0; w < k.ranks; ++w) {
      const InceptionnStream& s = k.streams[w];
      if (s.tags) {
        const std::uint8_t* const begun = k.places[w];
        k.places[w] = add_tagged(k, s, begun, i, next);
        // By the time the other ranks are added, about as many bytes as now will be needed.
        prefetch_run(k.places[w], k.places[w] - begun);
        prefetch_run(s.tags + next / kQuad, kInceptionnSum / kQuad);
      } else
        add_floats(k, s, i, next);
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <algorithm>
#include <cstring>
#include <vector>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

constexpr Size kAlign = 64;
constexpr Size kPart = 32768;  // elements that stay in the L2 cache from counting to writing

struct Encoding {
  const float* x;
  std::int32_t* used;
  std::uint8_t* stream;  // 1 + 4 n bytes
  int bound;
  Size n;

  Size start() const { return 1 + (n + 3) / 4; }  // of the codes
  Size capacity() const { return 1 + 4 * n; }
  std::uint8_t* tags() const { return stream + 1; }
  std::uint8_t* codes() const { return stream + start(); }
};

void check_bound(int bound) {
  if (bound < 1 || bound > 15) throw std::invalid_argument("bound must be from 1 to 15");
}

void write_raw(const Encoding& t) {
  t.stream[0] = 1;
  std::memcpy(t.stream + 1, t.x, 4 * std::size_t(t.n));
  *t.used = std::int32_t(t.capacity());
}

void inceptionn_encode(const float* x, std::int32_t* used, std::uint8_t* stream, int bound, Size n, int threads) {
  check_bound(bound);
  count_call();
  *used = 0;
  if (n == 0) return;
  const Encoding t = {x, used, stream, bound, n};
  const auto find_tags = kernels::inceptionn_tags.of[active_place()];
  const auto write_codes = kernels::inceptionn_codes.of[active_place()];
  const auto classify = [&](Size begin, Size end) {
    std::int64_t bytes = 0;
    find_tags({x, t.tags(), bound, &bytes, {nullptr, nullptr, nullptr}}, begin, end);
    return bytes;
  };
  const auto write = [&](Size begin, Size end, Size first, Size bytes) {
    if (t.start() + first + bytes > t.capacity()) return;  // The tensor will be sent as it is.
    write_codes({x, t.tags(), t.codes() + first, t.codes() + first + bytes, bound, nullptr}, begin, end);
  };
  const Size total = t.start() + parallel_append(n, kPart, threads, classify, write);
  if (total >= t.capacity()) return write_raw(t);
  stream[0] = 0;
  *used = std::int32_t(total);
}
GRADWIRE_OPERATION(inceptionn_encode)

// Calls f(begin, end, number of the part) for every part of a chunk.
template <class F>
void for_parts(Size begin, Size end, const F& f) {
  for (Size i = begin; i < end; i += kPart) f(i, std::min(i + kPart, end), std::size_t(i / kPart));
}

// Zero, but NaN where an element is no number.
void leave_nothing(float* x, Size n, int threads) {
  parallel_for(n, kAlign, threads, [&](Size begin, Size end, Size) {
    for (Size i = begin; i < end; ++i) x[i] = x[i] - x[i];
  });
}

// What is sent is known only when all parts are, and the residual must not be changed before.
void inceptionn_encode_feedback(float* grad, float* residual, std::int32_t* used, std::uint8_t* stream, int bound,
                                Maybe<std::int32_t> status, Size n, int threads) {
  check_bound(bound);
  count_call();
  *used = 0;
  if (n == 0) return;
  const Encoding t = {residual, used, stream, bound, n};
  const Feedback feedback = {grad, residual, status.data};
  const auto find_tags = kernels::inceptionn_tags.of[active_place()];
  const auto write_codes = kernels::inceptionn_codes.of[active_place()];
  std::vector<std::int64_t> starts(std::size_t((n + kPart - 1) / kPart + 1));
  const auto classify = [&](Size begin, Size end, std::size_t part) {
    find_tags({residual, t.tags(), bound, &starts[part + 1], feedback}, begin, end);
  };
  const auto lay_out = [&] {
    for (std::size_t part = 1; part < starts.size(); ++part) starts[part] += starts[part - 1];
  };
  const auto fits = [&] { return t.start() + starts.back() < t.capacity(); };
  const auto write = [&](Size begin, Size end, std::size_t part) {
    write_codes({residual, t.tags(), t.codes() + starts[part], t.codes() + starts[part + 1], bound, residual}, begin,
                end);
  };
  parallel_twice(
      n, kPart, threads, [&](Size begin, Size end, Size) { for_parts(begin, end, classify); }, lay_out,
      [&](Size begin, Size end, Size) {
        if (fits()) for_parts(begin, end, write);
      });
  if (!fits()) {
    write_raw(t);
    return leave_nothing(residual, n, threads);
  }
  stream[0] = 0;
  *used = std::int32_t(t.start() + starts.back());
}
GRADWIRE_OPERATION(inceptionn_encode_feedback)

// The streams of all ranks, `length` bytes each.
struct Decoding {
  Column streams;
  Size length, n;
};

// A stream as it is, or, if it is too short for its own tags, followed by zeros in `longer`: it comes from outside.
InceptionnStream open(const Decoding& t, Size rank, std::vector<std::uint8_t>& longer) {
  const std::uint8_t* stream = t.streams.data + rank * t.streams.stride;
  const bool raw = t.length > 0 && stream[0] == 1;
  const Size start = 1 + (t.n + 3) / 4, least = raw ? 1 + 4 * t.n : start;
  if (t.length < least) {
    longer.assign(std::size_t(least), 0);
    if (t.length > 0) std::memcpy(longer.data(), stream, std::size_t(t.length));
    stream = longer.data();
  }
  const std::uint8_t* const end = stream + std::max(t.length, least);
  return raw ? InceptionnStream{nullptr, stream + 1, end} : InceptionnStream{stream + 1, stream + start, end};
}

// Where the codes of each chunk begin: a row for each stream, an entry for each chunk and one more.
using Begins = std::vector<std::vector<std::int64_t>>;

void inceptionn_add_decoded(Column rows, float* out, int bound, double scale, Size ranks, Size length, Size n,
                            int threads) {
  check_bound(bound);
  if (ranks < 0 || length < 0) throw std::invalid_argument("a size must not be negative");
  count_call();
  if (n == 0) return;
  std::vector<std::vector<std::uint8_t>> longer(static_cast<std::size_t>(ranks));
  std::vector<InceptionnStream> streams(static_cast<std::size_t>(ranks));
  for (std::size_t w = 0; w < streams.size(); ++w) streams[w] = open({rows, length, n}, Size(w), longer[w]);
  const Size chunks = chunk_count(n, chunk_size(n, kAlign, threads));
  Begins begins(streams.size(), std::vector<std::int64_t>(std::size_t(chunks + 1)));
  const auto sizes_of = kernels::inceptionn_sizes.of[active_place()];
  const auto add = kernels::inceptionn_add_decoded.of[active_place()];
  const auto count_bytes = [&](Size begin, Size end, Size i) {
    for (std::size_t w = 0; w < streams.size(); ++w)
      if (streams[w].tags) sizes_of({streams[w].tags, &begins[w][std::size_t(i) + 1]}, begin, end);
  };
  const auto lay_out = [&] {
    for (std::vector<std::int64_t>& row : begins)
      for (std::size_t i = 1; i < row.size(); ++i) row[i] += row[i - 1];
  };
  const auto add_chunk = [&](Size begin, Size end, Size i) {
    std::vector<const std::uint8_t*> places(streams.size());
    for (std::size_t w = 0; w < streams.size(); ++w)
      places[w] = streams[w].codes + std::min(begins[w][std::size_t(i)], streams[w].end - streams[w].codes);
    add({streams.data(), places.data(), ranks, out, bound, float(scale)}, begin, end);
  };
  parallel_twice(n, kAlign, threads, count_bytes, lay_out, add_chunk);
}
GRADWIRE_OPERATION(inceptionn_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(inceptionn) {
  using namespace selftest;
  for (const int bound : {1, 10, 15}) {
    compare(target, "inceptionn_encode", [=](Buffers& x, Size n) {
      std::vector<std::uint8_t> stream(std::size_t(1 + 4 * n));
      inceptionn_encode(x.a.data(), x.status.data(), stream.data(), bound, n, 1);
      std::memcpy(x.bytes.data(), stream.data(), stream.size());
    });
    compare(target, "inceptionn_encode_feedback", [=](Buffers& x, Size n) {
      std::vector<std::uint8_t> stream(std::size_t(1 + 4 * n));
      std::int32_t used = 0;
      // Which of two NaNs a sum becomes is not laid down, and the stream holds its bits.
      for (float& value : x.b) value = value - value == 0.0f ? value : 1.0f;
      inceptionn_encode_feedback(x.a.data(), x.b.data(), &used, stream.data(), bound, {x.status.data()}, n, 1);
      std::memcpy(x.bytes.data(), stream.data(), std::size_t(used));
    });
    compare(target, "inceptionn_add_decoded", [=](Buffers& x, Size n) {
      const Rows rows = x.rows(n);
      x.bytes[0] = std::uint8_t(bound % 2);
      inceptionn_add_decoded({rows.data, rows.stride}, x.a.data(), bound, 0.3, rows.count, 2 * n, n, 1);
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
