// THC on a CPU, and the lengths of blocks: the kernels, and the operations of ops.py.
#include "family.h"

namespace gradwire {

struct BlockNorms {
  const float* x;
  float* norms;
  std::int64_t block;
};
GRADWIRE_KERNEL_SECOND(block_norms, BlockNorms)

// `codes` are a byte for each coordinate; the last block is padded to a power of two.
struct ThcEncode {
  const float* x;
  const float* norms;
  const std::int64_t* seed;  // of the signs: key and step
  std::uint8_t* codes;
  std::int64_t block;
  float levels, factor;  // factor: levels / (2 clip)
  std::uint64_t key, step;
};
GRADWIRE_KERNEL_SECOND(thc_encode, ThcEncode)

struct ThcAddDecoded {
  const float* norms;
  const std::int64_t* seed;
  const std::uint8_t* codes;
  float* out;
  std::int64_t block;
  float step;  // 2 / (levels * ranks)
  float clip, scale;
};
GRADWIRE_KERNEL_SECOND(thc_add_decoded, ThcAddDecoded)

// The size to which a block of `count` elements is padded.
inline std::int64_t thc_padded(std::int64_t count) {
  std::int64_t size = 16;
  while (size < count) size *= 2;
  return size;
}

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/norms.h"
#include "kernels/rotation.h"

namespace gradwire::GRADWIRE_TARGET {

// The length of each block.

void block_norms(const BlockNorms& args, std::int64_t begin, std::int64_t end) {
  const BlockNorms k = args;
  for (std::int64_t i = begin; i < end; i += k.block) {
    Magnitude m = {set_u32(0), set(0.0f)};
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    measure(k.x + i, count, true, m);
    k.norms[i / k.block] = norm_of(m, true, k.x + i, count);
  }
}

GRADWIRE_INLINE PhiloxStream signs_stream(const std::int64_t* seed) {
  return philox_stream(std::uint64_t(seed[0]), std::uint64_t(seed[1]));
}

// THC codes: each block is rotated and rounded to the levels of the common norm while it is in the cache.

// Beyond the last element there are zeros.
GRADWIRE_INLINE void rotate(float* y, const float* x, std::int64_t count, int size, const Signs& signs) {
  int i = 0;
  for (; count - i >= kLanes; i += kLanes) store(y + i, with_signs(load_ahead(x + i, kLanes), signs, i));
  for (; i < size; i += kLanes) {
    const int left = count > i ? int(count - i) : 0;
    store(y + i, left ? with_signs(load(x + i, left), signs, i) : set(0.0f));
  }
  hadamard(y, size);
}

// min(floor(min(max(y * factor + levels / 2, 0), levels) + (u + 0.5) / 2^16), levels)
GRADWIRE_INLINE void round_coordinates(std::uint8_t* codes, const float* y, const std::uint32_t* random, int size,
                                       float factor, float levels) {
  const F32 top = set(levels), middle = set(0.5f * levels), f = set(factor), zero = set(0.0f);
  for (int i = 0; i < size; i += kLanes) {
    const F32 place = load(y + i) * f + middle;
    const F32 inside = min(select(gt(place, zero), place, zero), top);
    const F32 shifted = mul_add_exact(from_i32(load_u16(random + i / 2)) + set(0.5f), set(0x1p-16f), inside);
    store_u8(codes + i, to_i32(min(shifted, top)));
  }
}

void thc_encode(const ThcEncode& args, std::int64_t begin, std::int64_t end) {
  const ThcEncode k = args;
  alignas(64) float y[kLongestRotation];
  std::uint32_t random[kLongestRotation / 2 + kPhiloxWords];
  Signs signs;
  const PhiloxStream common = signs_stream(k.seed), own = philox_stream(k.key, k.step);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    const int size = int(thc_padded(count));
    const float norm = k.norms[i / k.block];
    if (!usable(norm)) {
      std::memset(k.codes + i, 0, std::size_t(size));
      continue;
    }
    draw_signs(signs, common, i, size);
    rotate(y, k.x + i, count, size, signs);
    philox_words(random, std::uint64_t(i) / 8, (size / 2 + kPhiloxWords - 1) / kPhiloxWords, own);
    round_coordinates(k.codes + i, y, random, size, k.factor / norm, k.levels);
  }
}

// Adds the mean that summed THC codes stand for: each block is rotated back while it is in the cache.

void thc_add_decoded(const ThcAddDecoded& args, std::int64_t begin, std::int64_t end) {
  const ThcAddDecoded k = args;
  alignas(64) float y[kLongestRotation];
  Signs signs;
  const PhiloxStream common = signs_stream(k.seed);
  for (std::int64_t i = begin; i < end; i += k.block) {
    const std::int64_t count = end - i < k.block ? end - i : k.block;
    const int size = int(thc_padded(count));
    const float inverse = 1.0f / __builtin_sqrtf(float(size));
    const F32 unit = set(k.norms[i / k.block] * (k.clip * inverse)), step = set(k.step), one = set(1.0f);
    for (int j = 0; j < size; j += kLanes)
      store(y + j, (from_i32(load_u8(k.codes + i + j)) * step - one) * unit);
    hadamard(y, size);
    draw_signs(signs, common, i, size);
    const F32 factor = set(k.scale * inverse);
    for (int j = 0; j < count; j += kLanes) {
      const int left = count - j < kLanes ? int(count - j) : kLanes;
      store(k.out + i + j, load(k.out + i + j, left) + factor * with_signs(load(y + j), signs, j), left);
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

void block_norms(const float* x, float* norms, Size block, Size n, int threads) {
  if (block < 16 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
  run(kernels::block_norms, {x, norms, block}, n, block, threads);
}
GRADWIRE_OPERATION(block_norms)

// A block is at most as long as the kernels have room for; see kernels/rotation.h.
void check_block(Size block) {
  if (block < 16 || block > 16384 || (block & (block - 1)) != 0)
    throw std::invalid_argument("block must be a power of two from 16 to 16384");
}

// Where the codes end, in words of four.
Size words_of(Size n, Size block) { return (n / block * block + (n % block ? thc_padded(n % block) : 0)) / 4; }

// Behind the codes is the number of ranks.
void thc_encode(const float* x, const float* norms, const std::int64_t* seed, std::int32_t* codes, Size block,
                int levels, double clip, Size key, Size step, Size n, int threads) {
  check_block(block);
  const float factor = 0.5f * float(levels) / float(clip);
  const ThcEncode args = {x, norms, seed, reinterpret_cast<std::uint8_t*>(codes), block, float(levels), factor,
                          std::uint64_t(key), std::uint64_t(step)};
  run_backwards(kernels::thc_encode, args, n, block, threads);
  if (n > 0) codes[words_of(n, block)] = 1;
}
GRADWIRE_OPERATION(thc_encode)

// Beyond 255 the codes of all ranks may have run over, and nothing that is decoded would mean anything.
void thc_add_decoded(const float* norms, const std::int64_t* seed, const std::int32_t* codes, float* out, Size block,
                     int levels, double clip, double scale, Size n, int threads) {
  check_block(block);
  const std::int32_t world = n > 0 ? codes[words_of(n, block)] : 1;
  const bool fits = world > 0 && world <= 255 / levels;
  const float step = fits ? 2.0f / float(levels * world) : __builtin_nanf("");
  const ThcAddDecoded args = {norms, seed, reinterpret_cast<const std::uint8_t*>(codes), out, block, step, float(clip),
                              float(scale)};
  run(kernels::thc_add_decoded, args, n, block, threads);
}
GRADWIRE_OPERATION(thc_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(thc) {
  using namespace selftest;
  static constexpr std::int64_t kSeed[] = {0x123456789, 7};
  for (const Size block : {16, 64, 1024}) {
    check(target, "block_norms", kernels::block_norms,
          [=](Buffers& x, Size) { return BlockNorms{x.a.data(), x.c.data(), block}; });
    check(target, "thc_encode", kernels::thc_encode, [=](Buffers& x, Size) {
      return ThcEncode{x.a.data(), x.c.data(), kSeed, x.bytes.data(), block, 15.0f, 3.5f, 0x9876543210, 3};
    });
    check(target, "thc_add_decoded", kernels::thc_add_decoded, [=](Buffers& x, Size) {
      return ThcAddDecoded{x.c.data(), kSeed, x.bytes.data(), x.a.data(), block, 0.1f, 2.0f, 0.3f};
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
