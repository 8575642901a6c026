#include "tiles.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "dispatch.h"

namespace gradwire {

namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::uint32_t kLargest = 0x7fffffff;

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
  active().topk_scan({bracket, x}, 0, t.size);
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

// The waves of one tile that a rank names.
struct Waves {
  std::vector<float> left;
  std::vector<const float*> wide;

  void read(const WavesAddDecoded& w, std::int64_t rank, std::int64_t tile) {
    left.clear(), wide.clear();
    for (std::int64_t j = tile * w.k; j < (tile + 1) * w.k; ++j) {
      float value;
      std::uint16_t place;
      std::memcpy(&value, w.values.data + rank * w.values.stride + 4 * j, sizeof value);
      std::memcpy(&place, w.places.data + rank * w.places.stride + 2 * j, sizeof place);
      if (place >= w.height * w.width) continue;
      const float* const wave = w.tall + place / w.width * w.height;
      for (std::int64_t i = 0; i < w.height; ++i) left.push_back(wave[i] * value);
      wide.push_back(w.wide + place % w.width * w.width);
    }
  }
};

}  // namespace

void tile_topk(const TileTopk& t, std::int64_t tiles, int threads) {
  count_call();
  const std::int64_t each = std::max<std::int64_t>(t.size, 1);
  parallel_for(tiles * each, each, threads, [&](std::int64_t begin, std::int64_t end, int) {
    Room room(t.size);
    for (std::int64_t tile = begin / each; tile < end / each; ++tile)
      choose(t, t.x + tile * t.size, t.values + tile * t.k, t.places + tile * t.k, room);
  });
}

void waves_add_decoded(const WavesAddDecoded& w, std::int64_t tiles, int threads) {
  count_call();
  const std::int64_t each = w.height * w.width;
  parallel_for(tiles * each, each, threads, [&](std::int64_t begin, std::int64_t end, int) {
    Waves waves;
    for (std::int64_t tile = begin / each; tile < end / each; ++tile)
      for (std::int64_t rank = 0; rank < w.values.count; ++rank) {
        waves.read(w, rank, tile);
        float* const to = w.out + tile / w.across * w.height * w.pitch + tile % w.across * w.width;
        active().add_waves({waves.left.data(), waves.wide.data(), std::int64_t(waves.wide.size()), w.height, w.width,
                            to, w.pitch, w.scale},
                           0, w.height);
      }
  });
}

}  // namespace gradwire
