// EDEN on a CPU: the kernels, and the operations of ops.py.
#include "family.h"

namespace gradwire {

// `codes` have `bits` bits for each `group` of the coordinates that are sent, `sent` of a whole block.
struct Eden {
  const std::int32_t* seed;  // of the signs
  std::int64_t block, sent;
  int bits, group;
  const float* values;         // 2^bits of them: what the codes of single coordinates stand for
  const float* thresholds;     // 2^(bits - 1) - 1: the magnitudes from which on the next value is nearer
  const std::uint16_t* words;  // group / 16 for each of 128 codes of groups: the minus signs of what they stand for
};

struct EdenEncode : Eden {
  const float* x;
  float* scales;
  std::uint8_t* codes;
};
GRADWIRE_KERNEL(eden_encode, EdenEncode)

// The seed of each rank is in its row.
struct EdenAddDecoded : Eden {
  Rows seeds, scales, codes;
  float* out;
  float scale;
};
GRADWIRE_KERNEL(eden_add_decoded, EdenAddDecoded)

constexpr int kEdenWords = 128;  // without the sign of the whole

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/norms.h"
#include "kernels/qsgd_codes.h"
#include "kernels/rotation.h"

namespace gradwire::GRADWIRE_TARGET {

// Which blocks a tensor has, and their two rotations.

constexpr std::int64_t kEdenSmallest = 64, kEdenSpare = 128;

struct EdenBlock {
  std::int64_t begin, count;  // elements
  int size, kept;             // coordinates, and how many of them are sent
  std::int64_t scale, code;   // indices of its scale and of its first coordinate's code
};

struct EdenSigns {
  PhiloxStream streams[2];
  Signs first, second;
};

GRADWIRE_INLINE void begin_streams(EdenSigns& s, std::int32_t seed) {
  for (std::uint64_t i = 0; i < 2; ++i) s.streams[i] = philox_stream(std::uint32_t(seed), i);
}

GRADWIRE_INLINE void draw_signs(EdenSigns& s, const EdenBlock& b) {
  draw_signs(s.first, s.streams[0], b.begin, b.size);
  draw_signs(s.second, s.streams[1], b.begin, b.size);
}

GRADWIRE_INLINE void turn_signs(float* y, const Signs& s, int size) {
  for (int i = 0; i < size; i += kLanes) store(y + i, with_signs(load(y + i), s, i));
}

GRADWIRE_INLINE std::int64_t eden_kept(const Eden& k, std::int64_t size) {
  const std::int64_t step = k.group < kLanes ? kLanes : k.group, whole = k.block * step;
  return (size * k.sent + whole - 1) / whole * step;
}

// Of `rest` elements behind the whole blocks: the size of the first block that they are cut into.
GRADWIRE_INLINE std::int64_t eden_size(std::int64_t rest) {
  std::int64_t padded = kEdenSmallest;
  while (padded < rest) padded *= 2;
  return padded - rest <= kEdenSpare ? padded : padded / 2;
}

// Calls visit(block) for every block of [begin, end), which starts at a whole one.
template <class Visit>
GRADWIRE_INLINE void each_eden_block(const Eden& k, std::int64_t begin, std::int64_t end, const Visit& visit) {
  EdenBlock b = {begin, k.block, int(k.block), int(k.sent), begin / k.block, begin / k.block * k.sent};
  while (b.begin < end) {
    const std::int64_t rest = end - b.begin;
    const std::int64_t size = rest < k.block ? eden_size(rest) : k.block;
    b.count = rest < size ? rest : size, b.size = int(size), b.kept = int(eden_kept(k, size));
    visit(b);
    b.begin += b.count, b.scale += 1, b.code += b.kept;
  }
}

// Of so many coordinates, a multiple of 16 and of the group.
GRADWIRE_INLINE std::int64_t eden_bytes(const Eden& k, std::int64_t coordinates) {
  return coordinates * k.bits / (8 * k.group);
}

// x with the signs of `word` for 16 coordinates.
GRADWIRE_INLINE F32 turned(F32 x, std::uint16_t word) {
  return as_f32(as_u32(x) ^ select(mask_of(word), set_u32(0x80000000), set_u32(0)));
}

GRADWIRE_INLINE Table16 eden_values(const Eden& k, float* room) {
  for (int i = 0; i < 16; ++i) room[i] = k.values[i & ((1 << k.bits) - 1)];
  return table16(room);
}

// EDEN codes: each block is rotated twice, measured and rounded while it is in the cache.

// y = H E H D x / unit
GRADWIRE_INLINE void eden_rotate(float* y, const float* x, const EdenBlock& b, float inverse, const EdenSigns& s) {
  const F32 factor = set(inverse);
  for (int i = 0; i < b.size; i += kLanes) {
    const std::int64_t left = b.count - i;
    const F32 part = left >= kLanes ? load(x + i) : left > 0 ? load(x + i, int(left)) : set(0.0f);
    store(y + i, with_signs(part * factor, s.first, i));
  }
  hadamard(y, b.size);
  turn_signs(y, s.second, b.size);
  hadamard(y, b.size);
}

template <int kBits>
GRADWIRE_INLINE void store_eden(std::uint8_t* codes, U32 level, Mask negative) {
  if constexpr (kBits == 1) {
    const std::uint16_t word = bits(negative);
    std::memcpy(codes, &word, sizeof word);
  } else {
    store_levels<kBits>(codes, level | select(negative, set_u32(1u << (kBits - 1)), set_u32(0)));
  }
}

GRADWIRE_INLINE float sum_of_squares(const float* y, int count) {
  F32 squares = set(0.0f);
  for (int i = 0; i < count; i += kLanes) squares = squares + load(y + i) * load(y + i);
  return sum_of_lanes(squares);
}

GRADWIRE_INLINE float eden_scale(float squares, float product, int count) {
  return product > 0.0f ? squares / product / float(count) : 0.0f;
}

// Writes the codes and returns the scale in units of the block.
template <int kBits>
static float eden_round(std::uint8_t* codes, const float* y, int count, const Eden& k) {
  F32 products = set(0.0f);
  const float sum = sum_of_squares(y, count), root = __builtin_sqrtf(sum / float(count));
  constexpr int kAbove = (1 << (kBits - 1)) - 1;
  F32 limits[kAbove + 1];
  for (int j = 0; j < kAbove; ++j) limits[j] = set(root * k.thresholds[j]);
  float room[16];
  const Table16 values = eden_values(k, room);
  for (int i = 0; i < count; i += kLanes, codes += 2 * kBits) {
    const F32 x = load(y + i), size = as_f32(abs_bits(x));
    U32 level = set_u32(0);
    for (int j = 0; j < kAbove; ++j) level = level + select(ge(size, limits[j]), set_u32(1), set_u32(0));
    products = products + size * lookup(values, level);
    store_eden<kBits>(codes, level, lt(x, set(0.0f)));
  }
  return eden_scale(sum, sum_of_lanes(products), count);
}

// The word with the largest product with a group of 16 * kVectors coordinates, the first of equals; its product, too.
template <int kVectors>
GRADWIRE_INLINE std::uint8_t nearest_word(const float* y, const std::uint16_t* words, float& product) {
  constexpr int kGroup = kVectors * kLanes;
  F32 largest[kVectors], values[kVectors];
  U32 forms[kVectors];
  for (int v = 0; v < kVectors; ++v) largest[v] = set(-1.0f), values[v] = set(0.0f), forms[v] = set_u32(0);
  for (int first = 0; first < kEdenWords; first += kGroup) {
    F32 x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = turned(load(y + v * kLanes), words[first * kVectors + v]);
    for (int half = kVectors / 2; half > 0; half /= 2)
      for (int v = 0; v < kVectors; ++v)
        if (!(v & half)) {
          const F32 a = x[v], b = x[v + half];
          x[v] = a + b, x[v + half] = a - b;
        }
    for (int v = 0; v < kVectors; ++v) {
      x[v] = hadamard16(x[v]);
      const F32 size = as_f32(abs_bits(x[v]));
      const Mask better = gt(size, largest[v]);
      largest[v] = select(better, size, largest[v]), values[v] = select(better, x[v], values[v]);
      forms[v] = select(better, set_u32(std::uint32_t(first)), forms[v]);
    }
  }
  float sizes[kGroup], signedly[kGroup];
  std::uint32_t found[kGroup];
  for (int v = 0; v < kVectors; ++v) {
    store(sizes + v * kLanes, largest[v]), store(signedly + v * kLanes, values[v]);
    store_u32(found + v * kLanes, forms[v] + iota() + set_u32(std::uint32_t(v * kLanes)));
  }
  int best = 0;
  for (int i = 1; i < kGroup; ++i)
    if (sizes[i] > sizes[best] || (sizes[i] == sizes[best] && found[i] < found[best])) best = i;
  product = sizes[best];
  return std::uint8_t(found[best] | (signedly[best] < 0.0f ? kEdenWords : 0));
}

// Sixteen groups at a time: lane i of vector j becomes lane j of vector i, so that a lane holds one group, and its products
// need no exchange between lanes.
template <int kDistance>
GRADWIRE_INLINE void transpose_pairs(F32 (&x)[kLanes]) {
  const U32 distance = set_u32(kDistance);
  const Mask upper = eq(iota() & distance, distance);
GRADWIRE_UNROLL(16)
  for (int i = 0; i < kLanes; ++i)
    if (!(i & kDistance)) {
      const F32 a = x[i], b = x[i + kDistance];
      x[i] = select(upper, swap_lanes<kDistance>(b), a);
      x[i + kDistance] = select(upper, b, swap_lanes<kDistance>(a));
    }
}

template <int kVectors>
GRADWIRE_INLINE void transpose_groups(float* columns, const float* y) {
  for (int v = 0; v < kVectors; ++v) {
    F32 x[kLanes];
GRADWIRE_UNROLL(16)
    for (int i = 0; i < kLanes; ++i) x[i] = load(y + (i * kVectors + v) * kLanes);
    transpose_pairs<8>(x), transpose_pairs<4>(x), transpose_pairs<2>(x), transpose_pairs<1>(x);
GRADWIRE_UNROLL(16)
    for (int i = 0; i < kLanes; ++i) store(columns + (v * kLanes + i) * kLanes, x[i]);
  }
}

// The products of each lane's group with the words of one form, eight words at a time in the order of their numbers.
// `signed_at(i)` are coordinates i with the signs of the form. The sums are those of hadamard16, in the same order.
template <int kGroup, class Signed, class Visit>
GRADWIRE_INLINE void products_of_form(const Signed& signed_at, const Visit& visit) {
  constexpr int kRows = kGroup / 8;
  F32 x[kGroup];
GRADWIRE_UNROLL(8)
  for (int j = 0; j < 8; ++j) {
GRADWIRE_UNROLL(8)
    for (int i = 0; i < kRows; ++i) x[8 * i + j] = signed_at(8 * i + j);
GRADWIRE_UNROLL(3)
    for (int half = kRows / 2; half > 0; half /= 2)
GRADWIRE_UNROLL(8)
      for (int i = 0; i < kRows; ++i)
        if (!(i & half)) {
          const F32 a = x[8 * i + j], b = x[8 * (i + half) + j];
          x[8 * i + j] = a + b, x[8 * (i + half) + j] = a - b;
        }
  }
GRADWIRE_UNROLL(8)
  for (int i = 0; i < kGroup; i += 8) {
GRADWIRE_UNROLL(3)
    for (int half = 4; half > 0; half /= 2)
GRADWIRE_UNROLL(8)
      for (int j = 0; j < 8; ++j)
        if (!(j & half)) {
          const F32 a = x[i + j], b = x[i + j + half];
          x[i + j] = a + b, x[i + j + half] = a - b;
        }
    visit(i, x + i);
  }
}

// The same as nearest_word for 16 groups. The first pass finds the largest product alone, and which form has it; the
// second one repeats that form, another one in each lane, to see which word it was.
template <int kVectors>
GRADWIRE_INLINE void nearest_words(std::uint8_t* codes, float* products, const float* y, const std::uint16_t* words) {
  constexpr int kGroup = kVectors * kLanes;
  alignas(64) float columns[kGroup * kLanes];
  transpose_groups<kVectors>(columns, y);
  U32 largest = set_u32(0), form = set_u32(0), minus[kVectors];
  for (int v = 0; v < kVectors; ++v) minus[v] = set_u32(words[v]);
  for (int first = 0; first < kEdenWords; first += kGroup) {
    const std::uint16_t* const word = words + first * kVectors;
    U32 most = set_u32(0);
    const auto signed_at = [&](int i) GRADWIRE_LAMBDA {
      const std::uint32_t sign = std::uint32_t(word[i / kLanes]) >> i % kLanes << 31;
      return as_f32(as_u32(load(columns + i * kLanes)) ^ set_u32(sign));
    };
    products_of_form<kGroup>(signed_at, [&](int, const F32* x) GRADWIRE_LAMBDA {
      for (int j = 0; j < 8; ++j) watch(most, x[j]);
    });
    const Mask better = gt(most, largest);
    largest = max_u32(most, largest), form = select(better, set_u32(std::uint32_t(first)), form);
    for (int v = 0; v < kVectors; ++v) minus[v] = select(better, set_u32(word[v]), minus[v]);
  }
  U32 place = set_u32(0);
  const auto signed_at = [&](int i) GRADWIRE_LAMBDA {
    const U32 sign = shl(minus[i / kLanes], 31 - i % kLanes) & set_u32(0x80000000);
    return as_f32(as_u32(load(columns + i * kLanes)) ^ sign);
  };
  Mask missing = mask_of(0xffff);
  products_of_form<kGroup>(signed_at, [&](int i, const F32* x) GRADWIRE_LAMBDA {
    for (int j = 0; j < 8; ++j) {
      const Mask here = missing & eq(abs_bits(x[j]), largest);
      const U32 whole = select(lt(x[j], set(0.0f)), set_u32(kEdenWords), set_u32(0));
      place = select(here, whole | set_u32(std::uint32_t(i + j)), place);
      missing = and_not(missing, here);
    }
  });
  store_u8(codes, form | place);
  store(products, as_f32(largest));
}

// The same as eden_round for codes of groups. What is behind whole sixteens of groups is searched one by one.
template <int kVectors>
static float eden_match(std::uint8_t* codes, const float* y, int count, const Eden& k) {
  constexpr int kGroup = kVectors * kLanes;
  float products[kLongestRotation / kGroup + kLanes];
  const int groups = count / kGroup;
  int i = 0;
  for (; groups - i >= kLanes; i += kLanes) nearest_words<kVectors>(codes + i, products + i, y + i * kGroup, k.words);
  for (; i < groups; ++i) codes[i] = nearest_word<kVectors>(y + i * kGroup, k.words, products[i]);
  F32 sums = set(0.0f);
  for (i = 0; i < groups; i += kLanes)
    sums = sums + load(products + i, groups - i < kLanes ? groups - i : kLanes);
  return eden_scale(sum_of_squares(y, count), sum_of_lanes(sums), count);
}

GRADWIRE_INLINE std::uint32_t largest_bits(const float* x, std::int64_t count) {
  U32 largest = set_u32(0);
  std::int64_t i = 0;
  for (; count - i >= kLanes; i += kLanes) watch(largest, load_ahead(x + i, kLanes));
  if (i < count) watch(largest, load(x + i, int(count - i)));
  return reduce_max(largest);
}

void eden_encode(const EdenEncode& args, std::int64_t begin, std::int64_t end) {
  const EdenEncode k = args;
  alignas(64) float y[kLongestRotation];
  EdenSigns signs;
  begin_streams(signs, *k.seed);
  constexpr decltype(&eden_round<1>) single[] = {nullptr, eden_round<1>, eden_round<2>, eden_round<3>, eden_round<4>};
  const auto round = k.group == 1    ? single[k.bits]
                     : k.group == 16 ? eden_match<1>
                     : k.group == 32 ? eden_match<2>
                                     : eden_match<4>;
  each_eden_block(k, begin, end, [&](const EdenBlock& b) {
    std::uint8_t* const codes = k.codes + eden_bytes(k, b.code);
    const std::uint32_t word = largest_bits(k.x + b.begin, b.count);
    float largest;
    std::memcpy(&largest, &word, sizeof largest);
    if (!(largest >= 0x1p-120f && usable(largest))) {
      k.scales[b.scale] = largest < 0x1p-120f ? 0.0f : __builtin_nanf("");
      std::memset(codes, 0, std::size_t(eden_bytes(k, b.kept)));
      return;
    }
    const int exponent = exponent_of(word);
    draw_signs(signs, b);
    eden_rotate(y, k.x + b.begin, b, power_of_two(-exponent), signs);
    // The words of a group are rows of its Hadamard matrix, so to look for the best one is to undo a part of the second
    // rotation. Signs in between keep what the rotations are for: no coordinate stands out because of the tensor.
    if (k.group != 1) turn_signs(y, signs.first, b.kept);
    k.scales[b.scale] = round(codes, y, b.kept, k) * power_of_two(exponent);
  });
}

// Adds what EDEN codes stand for: each block is rotated back while it is in the cache.

template <int kBits>
GRADWIRE_INLINE U32 load_eden(const std::uint8_t* codes) {
  if constexpr (kBits == 1) {
    std::uint16_t word;
    std::memcpy(&word, codes, sizeof word);
    return select(mask_of(word), set_u32(1), set_u32(0));
  } else {
    return load_fields<kBits>(codes) & set_u32((1u << kBits) - 1);
  }
}

template <int kBits>
static void eden_read(float* y, const std::uint8_t* codes, int count, float scale, const Eden& k) {
  float room[16];
  const Table16 values = eden_values(k, room);
  const F32 unit = set(scale);
  for (int i = 0; i < count; i += kLanes, codes += 2 * kBits)
    store(y + i, lookup(values, load_eden<kBits>(codes)) * unit);
}

template <int kVectors>
static void eden_spell(float* y, const std::uint8_t* codes, int count, float scale, const Eden& k) {
  const F32 unit = set(scale);
  for (int i = 0; i < count; i += kVectors * kLanes, ++codes) {
    const std::uint16_t* const word = k.words + *codes % kEdenWords * kVectors;
    const std::uint16_t whole = *codes < kEdenWords ? 0 : 0xffff;
    for (int v = 0; v < kVectors; ++v) store(y + i + v * kLanes, turned(unit, std::uint16_t(word[v] ^ whole)));
  }
}

void eden_add_decoded(const EdenAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const EdenAddDecoded k = args;
  alignas(64) float y[kLongestRotation];
  EdenSigns signs;
  constexpr decltype(&eden_read<1>) single[] = {nullptr, eden_read<1>, eden_read<2>, eden_read<3>, eden_read<4>};
  const auto read = k.group == 1    ? single[k.bits]
                    : k.group == 16 ? eden_spell<1>
                    : k.group == 32 ? eden_spell<2>
                                    : eden_spell<4>;
  const F32 factor = set(k.scale);
  each_eden_block(k, begin, end, [&](const EdenBlock& b) {
    float* const out = k.out + b.begin;
    for (std::int64_t w = 0; w < k.codes.count; ++w) {
      std::int32_t seed;
      float unit;
      std::memcpy(&seed, k.seeds.data + w * k.seeds.stride, sizeof seed);
      std::memcpy(&unit, k.scales.data + w * k.scales.stride + b.scale * std::int64_t(sizeof unit), sizeof unit);
      read(y, k.codes.data + w * k.codes.stride + eden_bytes(k, b.code), b.kept, unit * (1.0f / float(b.size)), k);
      for (int i = b.kept; i < b.size; i += kLanes) store(y + i, set(0.0f));
      begin_streams(signs, seed);
      draw_signs(signs, b);
      if (k.group != 1) turn_signs(y, signs.first, b.kept);
      hadamard(y, b.size);
      turn_signs(y, signs.second, b.size);
      hadamard(y, b.size);
      for (int i = 0; i < b.count; i += kLanes) {
        const int left = b.count - i < kLanes ? int(b.count - i) : kLanes;
        store(out + i, load(out + i, left) + factor * with_signs(load(y + i), signs.first, i), left);
      }
    }
  });
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

// `table`: the values and then the thresholds, or the words.
Eden eden(const std::int32_t* seed, Size block, int bits, Size sent, int group, const void* table) {
  if (block < 64 || block > 16384 || (block & (block - 1)) != 0)
    throw std::invalid_argument("block must be a power of two from 64 to 16384");
  const bool single = group == 1 && bits >= 1 && bits <= 4;
  if (!single && !(bits == 8 && (group == 16 || group == 32 || group == 64)))
    throw std::invalid_argument("bits must be from 1 to 4, or 8 for groups of 16, 32 or 64");
  if (sent < 16 || sent > block || sent % (single ? 16 : group) != 0)
    throw std::invalid_argument("sent must be a multiple of 16 and of the group");
  if (!single) return {seed, block, sent, bits, group, nullptr, nullptr, static_cast<const std::uint16_t*>(table)};
  const float* const values = static_cast<const float*>(table);
  return {seed, block, sent, bits, group, values, values + (1 << bits), nullptr};
}

void eden_encode(const float* x, const std::int32_t* seed, float* scales, std::uint8_t* codes, Size block, int bits,
                 Size sent, int group, const void* table, Size n, int threads) {
  run(kernels::eden_encode, {eden(seed, block, bits, sent, group, table), x, scales, codes}, n, block, threads);
}
GRADWIRE_OPERATION(eden_encode)

void eden_add_decoded(Column seeds, Column scales, Column codes, float* out, Size block, int bits, Size sent,
                      double scale, int group, const void* table, Size ranks, Size n, int threads) {
  const Eden form = eden(nullptr, block, bits, sent, group, table);
  const EdenAddDecoded args = {form, seeds.rows(ranks), scales.rows(ranks), codes.rows(ranks), out, float(scale)};
  run(kernels::eden_add_decoded, args, n, block, threads);
}
GRADWIRE_OPERATION(eden_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
static void check_eden(const std::string& target, int bits, int group) {
  using namespace selftest;
  static const std::int32_t seed = -5;
  static const float values[] = {0.1f,  0.4f,  0.7f,  0.9f, 1.3f, 1.6f, 2.1f, 2.7f, -1.0f, -2.0f, -3.0f, -4.0f,
                                 5.0f,  6.0f,  7.0f,  8.0f, 0.2f, 0.5f, 0.8f, 1.1f, 1.4f,  1.8f,  2.3f,  2.9f};
  static const std::vector<std::uint16_t> words(512, 0x1234);
  const void* const table = group == 1 ? static_cast<const void*>(values) : words.data();
  const Eden form = eden(&seed, 1024, bits, 512, group, table);
  check(target, "eden_encode", kernels::eden_encode, [&](Buffers& x, Size) {
    return EdenEncode{form, x.a.data(), x.c.data(), x.bytes.data()};
  });
  check(target, "eden_add_decoded", kernels::eden_add_decoded, [&](Buffers& x, Size n) {
    return EdenAddDecoded{form, x.rows(n), x.rows(n), x.rows(n), x.a.data(), 0.3f};
  });
}

GRADWIRE_SELFTEST_OF(eden) {
  for (int bits = 1; bits <= 4; ++bits) check_eden(target, bits, 1);
  for (const int group : {16, 32, 64}) check_eden(target, 8, group);
}
#endif

}  // namespace gradwire::operations

#endif
