// 3LC codes on a CPU: the kernels, and the operations of ops.py, which says what the bytes are.
#include "family.h"

namespace gradwire {

struct ThreeLc {
  float* scales;
  std::int16_t* lengths;
  std::uint8_t* stream;
  std::int64_t block;
  float sparsity;
};

struct ThreeLcEncode : ThreeLc {
  const float* x;
};
GRADWIRE_KERNEL_SECOND(three_lc_encode, ThreeLcEncode)

struct ThreeLcEncodeFeedback : Feedback, ThreeLc {};
GRADWIRE_KERNEL_SECOND(three_lc_encode_feedback, ThreeLcEncodeFeedback)

// Here the blocks lie side by side in the `bytes` of a stream.
struct ThreeLcAddDecoded {
  Rows scales, lengths, stream;
  std::int64_t bytes;
  float* out;
  std::int64_t block;
  float scale;
};
GRADWIRE_KERNEL_SECOND(three_lc_add_decoded, ThreeLcAddDecoded)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/compensate.h"

namespace gradwire::GRADWIRE_TARGET {

// 3LC codes of a block: five elements of -1, 0 or 1 are a byte 0 .. 242, and runs of zero bytes one byte of 243 .. 255.

constexpr int kZeroGroup = 121;
constexpr int kFirstRun = 243;  // of two zero groups
constexpr int kLongestRun = 14;

GRADWIRE_INLINE std::int64_t groups_of(std::int64_t count) { return (count + 4) / 5; }

// 8 groups, a byte each, from the 40 bits of their elements: the first element is the lowest bit of a byte.
GRADWIRE_INLINE std::uint64_t spread_groups(const std::uint8_t* bits) {
  std::uint64_t x;
  std::memcpy(&x, bits, sizeof x);
  x = (x & 0xfffff) | (x & 0xfffff00000) << 12;
  x = (x & 0x000003ff000003ff) | (x & 0x000ffc00000ffc00) << 6;
  return (x & 0x001f001f001f001f) | (x & 0x03e003e003e003e0) << 3;
}

// The sum of the weights 81, 27, 9, 3, 1 of the elements that are set, for each of 8 groups.
GRADWIRE_INLINE std::uint64_t weights_of(std::uint64_t groups) {
  constexpr std::uint64_t kFirst = 0x0101010101010101;
  return (groups & kFirst) * 81 + (groups >> 1 & kFirst) * 27 + (groups >> 2 & kFirst) * 9 +
         (groups >> 3 & kFirst) * 3 + (groups >> 4 & kFirst);
}

// Bit i: byte i of the eight, all below 128, is not zero.
GRADWIRE_INLINE std::uint64_t nonzero_bytes(std::uint64_t x) {
  return ((x + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101) * 0x0102040810204080 >> 56;
}

constexpr int kTileGroups = 64;
constexpr int kGroupTile = 5 * kTileGroups;  // elements

// A bit for each element of a tile, and room to read 8 bytes at the last 40 bits.
struct TernaryTile {
  std::uint16_t plus[kGroupTile / kLanes + 2], minus[kGroupTile / kLanes + 2];
};

// Where the next byte goes, and how many groups are written; the zeros before the first that is not are only counted.
struct GroupWriter {
  std::uint8_t* out;
  std::int64_t done;
};

// Runs of zeros up to the group `next`. Where there are none, a byte is written that the next group overwrites.
GRADWIRE_INLINE void write_zeros(GroupWriter& w, std::int64_t next) {
  std::int64_t zeros = next - w.done;
  for (; zeros > kLongestRun; zeros -= kLongestRun) *w.out++ = std::uint8_t(kFirstRun - 2 + kLongestRun);
  *w.out = zeros == 1 ? std::uint8_t(kZeroGroup) : std::uint8_t(kFirstRun - 2 + zeros);
  w.out += zeros > 0;
  w.done = next;
}

// The groups of a tile, which begins at group `first`.
GRADWIRE_INLINE void write_groups(GroupWriter& w, const TernaryTile& tile, std::int64_t first) {
  const auto *const plus = reinterpret_cast<const std::uint8_t*>(tile.plus),
             *const minus = reinterpret_cast<const std::uint8_t*>(tile.minus);
  std::uint64_t groups[kTileGroups / 8], present = 0;
  for (int j = 0; j < kTileGroups / 8; ++j) {
    const std::uint64_t p = spread_groups(plus + 5 * j), m = spread_groups(minus + 5 * j);
    groups[j] = kZeroGroup * std::uint64_t{0x0101010101010101} + weights_of(p) - weights_of(m);
    present |= nonzero_bytes(p | m) << 8 * j;
  }
  for (; present; present &= present - 1) {
    const int group = __builtin_ctzll(present);
    write_zeros(w, first + group);
    *w.out++ = reinterpret_cast<const std::uint8_t*>(groups)[group];
    ++w.done;
  }
}

// What the elements of a block are compared with, and what is taken from those that exceed it.
struct Ternary {
  F32 plus, minus, scale;
  std::int64_t ahead;
};

GRADWIRE_INLINE Ternary ternary(float scale, std::int64_t block) {
  return {set(0.5f * scale), set(-0.5f * scale), set(scale), block_ahead(block)};
}

template <bool kKeep>
GRADWIRE_INLINE void take_ternary(const Ternary& t, const float* x, float* residual, int count, std::uint16_t& plus,
                                  std::uint16_t& minus) {
  // Where there is a residual the step that added it has asked for the memory ahead; else the arithmetic here has time.
  const F32 value = kKeep ? load(x, count) : load_ahead(x, count, t.ahead);
  const Mask above = gt(value, t.plus), below = lt(value, t.minus);
  if (kKeep) store(residual, select(above, value - t.scale, select(below, value + t.scale, value)), count);
  plus = bits(above), minus = bits(below);
}

template <bool kKeep>
GRADWIRE_INLINE void write_group_tile(GroupWriter& w, const Ternary& t, const float* x, float* residual, int count,
                                      std::int64_t first) {
  TernaryTile tile;
  if (count < kGroupTile) tile = {};
  int v = 0;
#pragma GCC unroll 4
  for (; (v + 1) * kLanes <= count; ++v)
    take_ternary<kKeep>(t, x + v * kLanes, residual + v * kLanes, kLanes, tile.plus[v], tile.minus[v]);
  if (v * kLanes < count)
    take_ternary<kKeep>(t, x + v * kLanes, residual + v * kLanes, count - v * kLanes, tile.plus[v], tile.minus[v]);
  write_groups(w, tile, first);
}

// The scale as it is sent: below 2^-120 it counts as zero.
GRADWIRE_INLINE float scale_of(U32 largest, float sparsity) {
  const std::uint32_t word = reduce_max(largest);
  float magnitude;
  std::memcpy(&magnitude, &word, sizeof magnitude);
  const float scale = sparsity * magnitude;
  return scale < 0x1p-120f ? 0.0f : scale;
}

// Writes the bytes of a block to where they would be if all blocks before were as long as they can be. A block whose
// scale is zero or not finite has none.
template <bool kKeep>
GRADWIRE_INLINE void write_ternary_block(const ThreeLc& k, const float* x, float* residual, std::int64_t first,
                                         std::int64_t count, float scale) {
  const std::int64_t block = first / k.block;
  std::uint8_t* const out = k.stream + block * groups_of(k.block);
  GroupWriter w = {out, 0};
  k.scales[block] = scale;
  if (scale > 0.0f && scale <= 0x1.fffffep127f) {
    const Ternary t = ternary(scale, k.block);
    std::int64_t i = 0;
    for (; count - i >= kGroupTile; i += kGroupTile)
      write_group_tile<kKeep>(w, t, x + i, residual + i, kGroupTile, i / 5);
    if (i < count) write_group_tile<kKeep>(w, t, x + i, residual + i, int(count - i), i / 5);
    if (w.done < groups_of(count)) write_zeros(w, groups_of(count));
  } else if (kKeep && !(scale == 0.0f)) {
    for (std::int64_t i = 0; i < count; ++i) residual[i] = __builtin_nanf("");
  }
  k.lengths[block] = std::int16_t(w.out - out);
}

// 3LC codes, block by block; join_blocks then moves the blocks together.

void three_lc_encode(const ThreeLcEncode& args, std::int64_t begin, std::int64_t end) {
  const ThreeLcEncode k = args;
  for (std::int64_t first = begin; first < end; first += k.block) {
    const std::int64_t count = end - first < k.block ? end - first : k.block;
    U32 largest = set_u32(0);
    std::int64_t i = 0;
    for (; count - i >= kLanes; i += kLanes) watch(largest, load(k.x + first + i, kLanes));
    if (i < count) watch(largest, load(k.x + first + i, int(count - i)));
    write_ternary_block<false>(k, k.x + first, nullptr, first, count, scale_of(largest, k.sparsity));
  }
}

// 3LC codes of residual + grad; the residual keeps what they do not say. One pass over memory.

GRADWIRE_INLINE void three_lc_compensate(const ThreeLcEncodeFeedback& k, std::int64_t i, int count, U32& largest,
                                         U32& worst) {
  const F32 x = compensate(k, i, count, worst);
  store(k.residual + i, x, count);
  watch(largest, x);
}

void three_lc_encode_feedback(const ThreeLcEncodeFeedback& args, std::int64_t begin, std::int64_t end) {
  const ThreeLcEncodeFeedback k = args;
  U32 worst = set_u32(0);
  for (std::int64_t first = begin; first < end; first += k.block) {
    const std::int64_t count = end - first < k.block ? end - first : k.block;
    U32 largest = set_u32(0);
    std::int64_t i = 0;
    for (; count - i >= kLanes; i += kLanes) three_lc_compensate(k, first + i, kLanes, largest, worst);
    if (i < count) three_lc_compensate(k, first + i, int(count - i), largest, worst);
    const float scale = scale_of(largest, k.sparsity);
    watch(worst, set(scale));
    write_ternary_block<true>(k, k.residual + first, k.residual + first, first, count, scale);
  }
  if (k.status) flag_nonfinite(k.status, worst);
}

// Adds the 3LC payloads of all ranks, block by block, so that a block of the sum stays in the cache.

constexpr std::int64_t kStreams = 64;  // ranks whose place in their stream is kept at once

constexpr std::int64_t kLongestTernary = 65536;
constexpr int kGroupRoom = 8;  // bytes that are written for the 5 elements of a group

// Of each byte the elements, first to last, as 0, 1, 2, those of a run being 1; and how many they are.
struct GroupDigits {
  std::uint8_t of[256][kGroupRoom], count[256];
  constexpr GroupDigits() : of(), count() {
    for (int byte = 0; byte < 256; ++byte) {
      for (int i = 0; i < kGroupRoom; ++i) of[byte][i] = 1;
      count[byte] = std::uint8_t(byte < kFirstRun ? 5 : 5 * (byte - kFirstRun + 2));
      if (byte < kFirstRun)
        for (int i = 4, rest = byte; i >= 0; --i, rest /= 3) of[byte][i] = std::uint8_t(rest % 3);
    }
  }
};

static constexpr GroupDigits kGroupDigits;

// Some bytes that belong together: only after all of them it is asked where they end.
constexpr int kBytesAtOnce = 4;
constexpr std::int64_t kDigitsBeyond = kBytesAtOnce * 5 * kLongestRun + kGroupRoom;

GRADWIRE_INLINE void expand_groups(std::uint8_t* digits, std::int64_t count, const std::uint8_t* bytes,
                                   std::int64_t length) {
  std::memset(digits, 1, std::size_t(count));
  const std::uint8_t* const after = bytes + length;
  std::int64_t i = 0;
  const auto expand = [&](std::uint8_t byte) GRADWIRE_LAMBDA {
    std::memcpy(digits + i, kGroupDigits.of[byte], kGroupRoom);
    i += kGroupDigits.count[byte];
  };
  for (; after - bytes >= kBytesAtOnce && i < count; bytes += kBytesAtOnce)
#pragma GCC unroll 4
    for (int j = 0; j < kBytesAtOnce; ++j) expand(bytes[j]);
  for (; bytes < after && i < count; ++bytes) expand(*bytes);
}

// Adding -0 changes nothing.
GRADWIRE_INLINE void add_digits(float* out, const std::uint8_t* digits, std::int64_t count, float step) {
  const Table4 values = table4(-step, -0.0f, step, 0.0f);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) store(out + i, load(out + i) + lookup(values, load_u8(digits + i)));
  const int rest = int(count - i);
  if (rest > 0) store(out + i, load(out + i, rest) + lookup(values, load_u8(digits + i, rest)), rest);
}

template <class T>
GRADWIRE_INLINE T item_of(const Rows& rows, std::int64_t rank, std::int64_t i) {
  T item;
  std::memcpy(&item, rows.data + rank * rows.stride + i * std::int64_t(sizeof item), sizeof item);
  return item;
}

GRADWIRE_INLINE void add_ternary_block(const ThreeLcAddDecoded& k, std::uint8_t* digits, std::int64_t rank,
                                       std::int64_t block, std::int64_t count, std::int64_t& place) {
  float* const out = k.out + block * k.block;
  const float scale = item_of<float>(k.scales, rank, block), step = k.scale * scale;
  const std::int64_t length = item_of<std::int16_t>(k.lengths, rank, block);
  const std::uint8_t* const bytes = k.stream.data + rank * k.stream.stride + place;
  if (!(scale - scale == 0.0f))
    for (std::int64_t i = 0; i < count; ++i) out[i] = __builtin_nanf("");
  else if (length > 0 && place + length <= k.bytes)
    expand_groups(digits, count, bytes, length), add_digits(out, digits, count, step);
  place += length > 0 ? length : 0;
}

void three_lc_add_decoded(const ThreeLcAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const ThreeLcAddDecoded k = args;
  alignas(64) std::uint8_t digits[kLongestTernary + kDigitsBeyond];
  for (std::int64_t first = 0; first < k.stream.count; first += kStreams) {
    const std::int64_t left = k.stream.count - first, ranks = left < kStreams ? left : kStreams;
    std::int64_t place[kStreams] = {};
    for (std::int64_t w = 0; w < ranks; ++w)
      for (std::int64_t block = 0; block < begin / k.block; ++block) {
        const std::int64_t length = item_of<std::int16_t>(k.lengths, first + w, block);
        place[w] += length > 0 ? length : 0;
      }
    for (std::int64_t i = begin; i < end; i += k.block) {
      const std::int64_t count = end - i < k.block ? end - i : k.block;
      for (std::int64_t w = 0; w < ranks; ++w)
        add_ternary_block(k, digits, first + w, i / k.block, count, place[w]);
    }
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

void check_block(Size block) {
  if (block < 16 || block > 65536) throw std::invalid_argument("block must be from 16 to 65536");
}

// The blocks of a stream side by side, zeros after them; `used` becomes their length.
void join_blocks(const ThreeLc& k, std::int32_t* used, Size n, int threads) {
  const Size room = (k.block + 4) / 5, blocks = (n + k.block - 1) / k.block, last = n - k.block * (blocks - 1);
  Size bytes = 0;
  for (Size block = 0; block < blocks; ++block) {
    std::memmove(k.stream + bytes, k.stream + block * room, std::size_t(k.lengths[block]));
    bytes += k.lengths[block];
  }
  if (n > 0) parallel_zero(k.stream + bytes, (blocks - 1) * room + (last + 4) / 5 - bytes, threads);
  *used = std::int32_t(bytes);
}

void three_lc_encode(const float* x, std::int32_t* used, float* scales, std::int16_t* lengths, std::uint8_t* stream,
                     Size block, double sparsity, Size n, int threads) {
  check_block(block);
  const ThreeLcEncode k = {{scales, lengths, stream, block, float(sparsity)}, x};
  run(kernels::three_lc_encode, k, n, block, threads);
  join_blocks(k, used, n, threads);
}
GRADWIRE_OPERATION(three_lc_encode)

void three_lc_encode_feedback(float* grad, float* residual, std::int32_t* used, float* scales, std::int16_t* lengths,
                              std::uint8_t* stream, Size block, double sparsity, Maybe<std::int32_t> status, Size n,
                              int threads) {
  check_block(block);
  const ThreeLcEncodeFeedback k = {{grad, residual, status.data}, {scales, lengths, stream, block, float(sparsity)}};
  run(kernels::three_lc_encode_feedback, k, n, block, threads);
  join_blocks(k, used, n, threads);
}
GRADWIRE_OPERATION(three_lc_encode_feedback)

void three_lc_add_decoded(Column scales, Column lengths, Column stream, float* out, Size block, double scale,
                          Size ranks, Size bytes, Size n, int threads) {
  check_block(block);
  run(kernels::three_lc_add_decoded,
      {scales.rows(ranks), lengths.rows(ranks), stream.rows(ranks), bytes, out, block, float(scale)}, n, block,
      threads);
}
GRADWIRE_OPERATION(three_lc_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(three_lc) {
  using namespace selftest;
  for (const Size block : {16, 80, 4096}) {
    const auto codes = [=](Buffers& x, Size n) {
      return ThreeLc{x.c.data(), reinterpret_cast<std::int16_t*>(x.bytes.data() + 2 * Buffers::row_bytes(n)),
                     x.bytes.data(), block, 1.2f};
    };
    check(target, "three_lc_encode", kernels::three_lc_encode,
          [=](Buffers& x, Size n) { return ThreeLcEncode{codes(x, n), x.a.data()}; });
    check(target, "three_lc_encode_feedback", kernels::three_lc_encode_feedback, [=](Buffers& x, Size n) {
      return ThreeLcEncodeFeedback{{x.a.data(), x.b.data(), x.status.data()}, codes(x, n)};
    });
    check(target, "three_lc_add_decoded", kernels::three_lc_add_decoded, [=](Buffers& x, Size n) {
      return ThreeLcAddDecoded{x.rows(n), x.rows(n), x.rows(n), Buffers::row_bytes(n), x.a.data(), block, 0.3f};
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
