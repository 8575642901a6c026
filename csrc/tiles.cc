#include "tiles.h"

#include <cstring>
#include <vector>

#include "dispatch.h"

namespace gradwire {

namespace {

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
