// Entries of all ranks added to a sum on a CPU: the kernel, and the operations of ops.py, which says what they are.
#include "sparse.h"

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// Adds sparse entries, one part after the other, segment by segment.
//
// The counts and indices are a peer's: whatever they say, nothing is read beyond the k entries of a part and nothing is
// written outside the sum.

constexpr std::int64_t kLine = 16;        // elements of a cache line
constexpr std::int64_t kFewerEach = 128;  // with an entry for so many elements most lines are touched by somebody

GRADWIRE_INLINE std::int64_t count_in(const SparsePart& part, std::int64_t segment, std::int64_t left) {
  std::int32_t count;
  std::memcpy(&count, part.counts + segment * std::int64_t(sizeof count), sizeof count);
  const std::int64_t covered = count < 0 ? 0 : count;
  return covered < left ? covered : left;
}

// The lines of the sum that are asked for while entries are added: `each` for 16 entries, up to `end`.
struct LinesAhead {
  const float *next, *end;
  std::int64_t each;
};

GRADWIRE_INLINE void ask_ahead(LinesAhead& lines) {
  for (std::int64_t i = 0; i < lines.each && lines.next < lines.end; ++i, lines.next += kLine)
    __builtin_prefetch(lines.next, 1, 2);
}

GRADWIRE_INLINE std::uint16_t index_of(const SparsePart& part, std::int64_t place) {
  std::uint16_t low;
  std::memcpy(&low, part.indices + place * std::int64_t(sizeof low), sizeof low);
  return low;
}

// The bits of 16 entries, or of what is left of them.
GRADWIRE_INLINE std::uint16_t bits_at(const SparsePart& part, std::int64_t place) {
  std::uint32_t word = 0;
  const std::uint64_t byte = std::uint64_t(place) / 8, bytes = (std::uint64_t(part.k) + 7) / 8;
  std::memcpy(&word, part.values + byte, bytes - byte < 4 ? std::size_t(bytes - byte) : 4);
  return std::uint16_t(word >> place % 8);
}

// What 16 entries add, of which `count` exist. The levels are those of a clear and of a set bit, times the scale.
template <bool kLevels>
GRADWIRE_INLINE void write_addends(float (&to)[kLanes], const SparsePart& part, std::int64_t place, int count,
                                   const float (&levels)[2], float scale) {
  if (kLevels) return store(to, select(mask_of(bits_at(part, place)), set(levels[1]), set(levels[0])));
  store(to, set(scale) * load(reinterpret_cast<const float*>(part.values) + place, count));
}

GRADWIRE_INLINE void add_at(float* at, float addend) { *at = *at + addend; }

// `room`: how many elements of the sum begin at `out`.
template <bool kLevels>
GRADWIRE_INLINE void add_sixteen(const SparsePart& part, std::int64_t place, int count, const float (&levels)[2],
                                 float scale, float* out, std::int64_t room) {
  alignas(64) float addends[kLanes];
  write_addends<kLevels>(addends, part, place, count, levels, scale);
  if (count == kLanes && room >= kMarkSegment) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) add_at(out + index_of(part, place + i), addends[i]);
    return;
  }
  for (int i = 0; i < count; ++i)
    if (index_of(part, place + i) < room) add_at(out + index_of(part, place + i), addends[i]);
}

// `near`: the segment of the sum is in a cache, or on its way; else what will be needed is asked for here.
template <bool near, bool kLevels>
GRADWIRE_INLINE void add_entries(const SparseAddDecoded& k, const SparsePart& part, std::int64_t first,
                                 std::int64_t place, std::int64_t stop, LinesAhead& lines) {
  constexpr std::int64_t kAhead = 32;
  const float levels[2] = {kLevels ? k.scale * part.levels[0] : 0, kLevels ? k.scale * part.levels[1] : 0};
  float* const out = k.out + first;
  for (; place < stop; place += kLanes) {
    const int count = stop - place < kLanes ? int(stop - place) : kLanes;
    // No further than this segment: there the bytes are indices.
    for (std::int64_t i = place + kAhead; !near && i < place + kAhead + kLanes && i < stop; ++i)
      __builtin_prefetch(out + index_of(part, i), 1);
    if (near) ask_ahead(lines);
    add_sixteen<kLevels>(part, place, count, levels, k.scale, out, k.n - first);
  }
}

template <bool near>
GRADWIRE_INLINE void add_part(const SparseAddDecoded& k, const SparsePart& part, std::int64_t first,
                              std::int64_t place, std::int64_t stop, LinesAhead& lines) {
  if (part.levels)
    add_entries<near, true>(k, part, first, place, stop, lines);
  else
    add_entries<near, false>(k, part, first, place, stop, lines);
}

// The lines of the segment after `first`, a few with every 16 of the entries that are added before.
GRADWIRE_INLINE LinesAhead lines_after(const SparseAddDecoded& k, std::int64_t first, std::int64_t end,
                                       std::int64_t entries) {
  const std::int64_t begin = first + kMarkSegment, after = begin + kMarkSegment, stop = after < end ? after : end;
  if (stop <= begin) return {nullptr, nullptr, 0};
  return {k.out + begin, k.out + stop, (stop - begin) / entries + 1};
}

// `places`: how many entries of each part belong to earlier segments. `asked`: the segment is on its way already.
// Returns whether the next one is.
GRADWIRE_INLINE bool add_segment(const SparseAddDecoded& k, const SparsePart* parts, std::int64_t count,
                                 std::int64_t segment, std::int64_t end, std::int64_t* places, bool asked) {
  const std::int64_t first = segment * kMarkSegment, size = k.n - first < kMarkSegment ? k.n - first : kMarkSegment;
  std::int64_t entries = 0;
  for (std::int64_t p = 0; p < count; ++p) entries += count_in(parts[p], segment, parts[p].k - places[p]);
  const bool near = entries > size / kFewerEach;
  if (near && !asked)
    for (std::int64_t i = 0; i < size; i += kLine) __builtin_prefetch(k.out + first + i, 1, 2);
  LinesAhead lines = near ? lines_after(k, first, end, entries) : LinesAhead{nullptr, nullptr, 0};
  for (std::int64_t p = 0; p < count; ++p) {
    const std::int64_t stop = places[p] + count_in(parts[p], segment, parts[p].k - places[p]);
    if (near)
      add_part<true>(k, parts[p], first, places[p], stop, lines);
    else
      add_part<false>(k, parts[p], first, places[p], stop, lines);
    places[p] = stop;
  }
  while (lines.next < lines.end) ask_ahead(lines);
  return near;
}

void sparse_add_decoded(const SparseAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const SparseAddDecoded k = args;
  constexpr std::int64_t kParts = 64;  // whose places are kept at a time
  for (std::int64_t next = 0; next < k.count; next += kParts) {
    const SparsePart* const parts = k.parts + next;
    const std::int64_t count = k.count - next < kParts ? k.count - next : kParts;
    std::int64_t places[kParts];
    for (std::int64_t p = 0; p < count; ++p)
      places[p] = k.places[(next + p) * ((k.n + kMarkSegment - 1) / kMarkSegment) + begin / kMarkSegment];
    bool asked = false;
    for (std::int64_t s = begin / kMarkSegment; s * kMarkSegment < end; ++s)
      asked = add_segment(k, parts, count, s, end, places, asked);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <vector>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

void sparse_add_decoded(Column values, Column indices, Column counts, float* out, double scale, Size ranks, Size k,
                        Size n, int threads) {
  std::vector<SparsePart> parts;
  for (Size w = 0; w < ranks; ++w)
    parts.push_back({values.data + w * values.stride, indices.data + w * indices.stride,
                     counts.data + w * counts.stride, k, nullptr});
  add_parts(parts, out, n, float(scale), threads);
}
GRADWIRE_OPERATION(sparse_add_decoded)

void parts_add_decoded(Several<const std::uint8_t> values, Several<const std::uint8_t> indices, std::vector<Size> sizes,
                       Several<const std::uint8_t> counts, Several<const float> levels, float* out, double scale,
                       Size n, int threads) {
  std::vector<SparsePart> parts;
  for (std::size_t i = 0; i < indices.size(); ++i)
    parts.push_back({values.at(i), indices.at(i), counts.at(i), sizes[i], levels.at(i)});
  add_parts(parts, out, n, float(scale), threads);
}
GRADWIRE_OPERATION(parts_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(entries) {
  using namespace selftest;
  static const float both[2] = {0.7f, -0.4f};
  for (const bool levels : {false, true})
    compare(target, "sparse_add_decoded", [&](Buffers& x, Size n) {
      const Rows rows = x.rows(n);
      std::vector<SparsePart> parts;
      for (Size w = 0; w < kRanks; ++w) {
        // About as many in a segment as it has elements, so that most are read.
        const std::int32_t counts[2] = {std::int32_t(n / 2), std::int32_t(n)};
        std::uint8_t* const row = x.bytes.data() + w * rows.stride;
        std::memcpy(row, counts, n > kMarkSegment ? sizeof counts : n > 0 ? sizeof counts[0] : 0);
        parts.push_back({row, row, row, n, levels ? both : nullptr});
      }
      add_parts(parts, x.a.data(), n, 0.3f, 1);
    });
}
#endif

}  // namespace gradwire::operations

#endif
