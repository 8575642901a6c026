// LoCo on a CPU: the kernels, and the operations of ops.py, which says what the bytes are.
#include "family.h"

namespace gradwire {

constexpr std::int64_t kLocoBlock = 1024;  // the longest, which is worked through in the L1 cache

struct Loco {
  float* norms;
  std::uint8_t* codes;
  std::int64_t block;
};

struct LocoEncode : Loco {
  const float* x;
};
GRADWIRE_KERNEL(loco_encode, LocoEncode)

// `error` has a row for each block: a byte for each element, and their scale.
struct LocoEncodeAveraged : Loco {
  float* grad;
  std::uint8_t* error;
  float weight, share;
  std::int32_t* status;
};
GRADWIRE_KERNEL(loco_encode_averaged, LocoEncodeAveraged)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/norms.h"
#include "kernels/qsgd_codes.h"

namespace gradwire::GRADWIRE_TARGET {

// At 2^23 and a half the last bit of a float32 is 1, so adding rounds to an integer, which is in the lowest bits.
GRADWIRE_INLINE F32 loco_middle() { return set(0x1.8p23f); }

struct LocoScale {
  F32 inverse, backwards;
  bool used;
};

GRADWIRE_INLINE LocoScale loco_scale(float norm) {
  const bool used = usable(norm);
  return {set(used ? 7.0f / norm : 0.0f), set(-(norm / 7.0f)), used};
}

// The levels of 16 elements; zeros where the scale cannot be used.
GRADWIRE_INLINE F32 loco_level(const LocoScale& scale, F32 x) {
  const F32 rounded = x * scale.inverse + loco_middle() - loco_middle();
  return scale.used ? rounded : set(0.0f);
}

// Calls level(i, number of elements) for each 16 of a block, and writes the codes of what it returns.
template <class Level>
GRADWIRE_INLINE void loco_write(std::uint8_t* codes, std::int64_t count, const Level& level) {
  std::int64_t i = 0;
  for (; count - i >= 4 * kLanes; i += 4 * kLanes) {
    U32 levels[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) levels[j] = to_i32(level(i + j * kLanes, kLanes));
    store_levels<4>(codes + i / 2, levels);
  }
  for (; count - i >= kLanes; i += kLanes) store_levels<4>(codes + i / 2, to_i32(level(i, kLanes)));
  if (i < count) store_levels<4>(codes + i / 2, to_i32(level(i, int(count - i))), int(count - i));
}

GRADWIRE_INLINE void loco_block(const LocoEncode& k, std::int64_t first, std::int64_t count) {
  Magnitude m = {set_u32(0), set(0.0f)};
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes) watch(m.largest, load_ahead(k.x + first + i, kLanes));
  if (i < count) watch(m.largest, load(k.x + first + i, int(count - i)));
  const float norm = norm_of(m, false, nullptr, count);
  k.norms[first / k.block] = norm;
  const LocoScale scale = loco_scale(norm);
  const float* const x = k.x + first;
  loco_write(k.codes + first / 2, count, [=](std::int64_t at, int some) GRADWIRE_LAMBDA {
    return loco_level(scale, load(x + at, some));
  });
}

void loco_encode(const LocoEncode& args, std::int64_t begin, std::int64_t end) {
  const LocoEncode k = args;
  for (std::int64_t i = begin; i < end; i += k.block) loco_block(k, i, end - i < k.block ? end - i : k.block);
}

// A block of the errors while it is in the L1 cache. `x` has whole vectors: what lies beyond the block's end is 0.
struct LocoRun {
  float* grad;
  std::uint8_t *row, *codes;
  float* x;
  std::int64_t count;
};

// The compensated gradient; the error goes to where the gradient was.
GRADWIRE_INLINE void loco_compensate_step(const LocoRun& run, std::int64_t i, F32 scale, F32 weight, U32& worst,
                                          int count) {
  const F32 m = from_i32(sar(shl(load_u8(run.row + i, count), 24), 24)) * scale;
  F32 x = load_ahead(run.grad + i, count) + m * weight;
  // A NaN as the scale would be one beyond the end, too.
  if (count < kLanes) x = select(mask_of(bits_of_count(count)), x, set(0.0f));
  store(run.grad + i, m, count), store(run.x + i, x);
  watch(worst, x);
}

// The level; what the error becomes takes the place of x.
GRADWIRE_INLINE F32 loco_round_step(const LocoRun& run, std::int64_t i, const LocoScale& scale, F32 share, U32& worst,
                                    int count) {
  const F32 x = load(run.x + i), q = loco_level(scale, x);
  F32 now = load(run.grad + i, count) * share + (x + scale.backwards * q);
  if (count < kLanes) now = select(mask_of(bits_of_count(count)), now, set(0.0f));
  store(run.x + i, now);
  watch(worst, now);
  return q;
}

// The scale of 8-bit codes by the largest magnitude: 17 significant bits, rounded up, but at most the number of which 127
// times is finite.
constexpr std::uint32_t kMostErrorScale = 0x7c010200;

GRADWIRE_INLINE float loco_error_scale(U32 worst) {
  const std::uint32_t word = reduce_max(worst);
  float scale;
  if (word >= 0x7f800000) return __builtin_inff();
  std::memcpy(&scale, &word, sizeof scale);
  if (scale < 0x1p-100f) return 0.0f;
  scale = scale / 127.0f;
  std::uint32_t bits;
  std::memcpy(&bits, &scale, sizeof bits);
  bits = (bits + 127) & ~std::uint32_t{127};
  if (bits > kMostErrorScale) bits = kMostErrorScale;
  std::memcpy(&scale, &bits, sizeof bits);
  return scale;
}

GRADWIRE_INLINE void loco_store_error(const LocoRun& run, std::int64_t block, float scale) {
  std::int64_t i = 0;
  if (usable(scale)) {
    const F32 inverse = set(1.0f / scale);
    const auto code = [=](std::int64_t at) GRADWIRE_LAMBDA {
      return to_i32(load(run.x + at) * inverse + loco_middle() - loco_middle());
    };
    for (; run.count - i >= 4 * kLanes; i += 4 * kLanes)
      store_i8(run.row + i, code(i), code(i + kLanes), code(i + 2 * kLanes), code(i + 3 * kLanes));
    for (; i < run.count; i += kLanes) store_u8(run.row + i, code(i));
  }
  std::memset(run.row + i, 0, std::size_t(block - i));
  std::memcpy(run.row + block, &scale, sizeof scale);
}

void loco_encode_averaged(const LocoEncodeAveraged& args, std::int64_t begin, std::int64_t end) {
  const LocoEncodeAveraged k = args;
  alignas(64) float x[kLocoBlock];
  U32 watched = set_u32(0);
  for (std::int64_t first = begin; first < end; first += k.block) {
    const std::int64_t number = first / k.block, count = end - first < k.block ? end - first : k.block;
    const LocoRun run = {k.grad + first, k.error + number * (k.block + 4), k.codes + first / 2, x, count};
    float before;
    std::memcpy(&before, run.row + k.block, sizeof before);
    const F32 scale = set(before), weight = set(k.weight), share = set(k.share);
    Magnitude m = {set_u32(0), set(0.0f)};
    std::int64_t i = 0;
#pragma GCC unroll 4
    for (; count - i >= kLanes; i += kLanes) loco_compensate_step(run, i, scale, weight, m.largest, kLanes);
    if (i < count) loco_compensate_step(run, i, scale, weight, m.largest, int(count - i));
    const float norm = norm_of(m, false, nullptr, count);
    k.norms[number] = norm;
    watch(watched, set(norm));
    const LocoScale levels = loco_scale(norm);
    U32 worst = set_u32(0);
    loco_write(run.codes, count, [&](std::int64_t at, int some) GRADWIRE_LAMBDA {
      return loco_round_step(run, at, levels, share, worst, some);
    });
    const float after = loco_error_scale(worst);
    watch(watched, set(after));
    loco_store_error(run, k.block, after);
  }
  flag_nonfinite(k.status, watched);
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

Size loco_block(Size block) {
  if (block < 16 || block > kLocoBlock || block % 16 != 0)
    throw std::invalid_argument("block must be a multiple of 16 from 16 to 1024");
  return block;
}

void loco_encode(const float* x, float* norms, std::uint8_t* codes, Size block, Size n, int threads) {
  run(kernels::loco_encode, {{norms, codes, loco_block(block)}, x}, n, block, threads);
}
GRADWIRE_OPERATION(loco_encode)

void loco_encode_averaged(float* grad, std::uint8_t* error, float* norms, std::uint8_t* codes, Size block,
                          double weight, double share, std::int32_t* status, Size n, int threads) {
  run(kernels::loco_encode_averaged,
      {{norms, codes, loco_block(block)}, grad, error, float(weight), float(share), status}, n, block, threads);
}
GRADWIRE_OPERATION(loco_encode_averaged)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(loco) {
  using namespace selftest;
  for (const Size block : {16, 48, 1024}) {
    check(target, "loco_encode", kernels::loco_encode, [=](Buffers& x, Size) {
      return LocoEncode{{x.c.data(), x.bytes.data(), block}, x.a.data()};
    });
    // Room for whole blocks, of which each element takes four times what a code does.
    check(target, "loco_encode_averaged", kernels::loco_encode_averaged, [=](Buffers& x, Size n) {
      if (x.bytes.size() < std::size_t((n + block) * 5 / 2 + 2048)) x.bytes.resize(std::size_t((n + block) * 5 / 2 + 2048));
      std::uint8_t* const codes = x.bytes.data() + (n + block) * 5 / 4 + 1024;
      const Loco levels = {x.c.data(), codes, block};
      return LocoEncodeAveraged{levels, x.a.data(), x.bytes.data(), 0.2f, 0.8f, x.status.data()};
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
