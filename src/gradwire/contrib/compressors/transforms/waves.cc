// Waves of tiles on a CPU: the kernel, and the operation of ops.py.
#include "family.h"

namespace gradwire {

// A few waves of one tile: rows [begin, end) of out += scale * sum_c left[c][row] * waves[c][column].
struct AddWaves {
  const float* left;  // `count` times `height`
  const float* const* waves;
  std::int64_t count, height, width;
  float* out;
  std::int64_t stride;
  float scale;
};
GRADWIRE_KERNEL_SECOND(add_waves, AddWaves)

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "simd/simd.h"

namespace gradwire::GRADWIRE_TARGET {

// A few waves of a tile, added up in registers and then to the tile, a block of rows at a time.

constexpr int kWaveRows = 4;
constexpr int kWaveVectors = 4;

// kRows rows from `row` on, kVectors vectors from `column` on, the last of `count` elements.
template <int kRows, int kVectors>
GRADWIRE_INLINE void add_waves_block(const AddWaves& k, std::int64_t row, std::int64_t column, int count) {
  F32 sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = set(0.0f);
  for (std::int64_t c = 0; c < k.count; ++c) {
    const float* const left = k.left + c * k.height + row;
    F32 wave[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      wave[v] = load(k.waves[c] + column + v * kLanes, v + 1 < kVectors ? kLanes : count);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = sums[r][v] + set(left[r]) * wave[v];
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      float* const to = k.out + (row + r) * k.stride + column + v * kLanes;
      const int there = v + 1 < kVectors ? kLanes : count;
      store(to, load(to, there) + sums[r][v] * set(k.scale), there);
    }
}

template <int kRows>
GRADWIRE_INLINE void add_waves_rows(const AddWaves& k, std::int64_t row) {
  constexpr std::int64_t kWide = kWaveVectors * kLanes;
  std::int64_t column = 0;
  for (; k.width - column >= kWide; column += kWide) add_waves_block<kRows, kWaveVectors>(k, row, column, kLanes);
  for (; k.width - column >= kLanes; column += kLanes) add_waves_block<kRows, 1>(k, row, column, kLanes);
  if (column < k.width) add_waves_block<kRows, 1>(k, row, column, int(k.width - column));
}

void add_waves(const AddWaves& args, std::int64_t begin, std::int64_t end) {
  const AddWaves k = args;
  std::int64_t row = begin;
  for (; end - row >= kWaveRows; row += kWaveRows) add_waves_rows<kWaveRows>(k, row);
  for (; row < end; ++row) add_waves_rows<1>(k, row);
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include <cstring>
#include <vector>

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

// `tall` and `wide` are square matrices, a wave in each row; a place is a row of the one and a row of the other.
struct Basis {
  const float *tall, *wide;
  Size height, width;
};

// The waves of one tile that a rank names.
struct Waves {
  std::vector<float> left;
  std::vector<const float*> wide;

  void read(const Basis& basis, const std::uint8_t* values, const std::uint8_t* places, Size k) {
    left.clear(), wide.clear();
    for (Size j = 0; j < k; ++j) {
      float value;
      std::uint16_t place;
      std::memcpy(&value, values + 4 * j, sizeof value);
      std::memcpy(&place, places + 2 * j, sizeof place);
      if (place >= basis.height * basis.width) continue;
      const float* const wave = basis.tall + place / basis.width * basis.height;
      for (Size i = 0; i < basis.height; ++i) left.push_back(wave[i] * value);
      wide.push_back(basis.wide + place % basis.width * basis.width);
    }
  }
};

void waves_add_decoded(Column values, Column places, const float* tall, const float* wide, float* out, Size a, Size b,
                       Size down, Size across, Size pitch, double scale, Size ranks, Size named, Size, int threads) {
  if (a < 1 || b < 1 || down < 1 || across < 1 || pitch < across * b)
    throw std::invalid_argument("there is no such tile");
  const Basis basis = {tall, wide, a, b};
  const Size tiles = down * across, k = named / tiles, each = a * b;
  const auto add = kernels::add_waves.of[active_place()];
  count_call();
  parallel_for(tiles * each, each, threads, [&](Size begin, Size end, Size) {
    Waves waves;
    for (Size tile = begin / each; tile < end / each; ++tile)
      for (Size rank = 0; rank < ranks; ++rank) {
        waves.read(basis, values.data + rank * values.stride + 4 * k * tile,
                   places.data + rank * places.stride + 2 * k * tile, k);
        float* const to = out + tile / across * a * pitch + tile % across * b;
        add({waves.left.data(), waves.wide.data(), Size(waves.wide.size()), a, b, to, pitch, float(scale)}, 0, a);
      }
  });
}
GRADWIRE_OPERATION(waves_add_decoded)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
static void check_waves(const std::string& target, Size height, Size width) {
  using namespace selftest;
  constexpr Size kWaves = 3;
  std::vector<float> left(std::size_t(kWaves * height)), wide(std::size_t(kWaves * width));
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = float(i % 7) / 3 - 1.0f;
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = float(i % 5) / 9 + 0.1f;
  compare(target, "add_waves", [&](Buffers& x, Size n) {
    if (n < height * (width + 3)) return;
    const float* const waves[kWaves] = {wide.data(), wide.data() + width, wide.data() + 2 * width};
    const AddWaves args = {left.data(), waves, kWaves, height, width, x.a.data(), width + 3, 0.3f};
    kernels::add_waves.of[active_place()](args, 0, height);
  });
}

GRADWIRE_SELFTEST_OF(waves) {
  for (const Size width : {1, 16, 17, 64}) check_waves(target, 5, width);
}
#endif

}  // namespace gradwire::operations

#endif
