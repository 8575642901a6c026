// Compares every kernel of every SIMD target with the scalar one on random data, bit for bit. For targets that the
// Python tests cannot reach on the machine at hand: csrc/tests/neon.sh runs it for 64-bit Arm in an emulator.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "selftest.h"

namespace {

using namespace gradwire;
using namespace gradwire::selftest;

constexpr std::int64_t kSeed[] = {0x123456789, 7};

void check_thc(const std::string& target, std::int64_t block) {
  check(target, "block_norms", &KernelTable::block_norms, [&](Buffers& x, std::int64_t) {
    return BlockNorms{x.a.data(), x.c.data(), block};
  });
  check(target, "thc_encode", &KernelTable::thc_encode, [&](Buffers& x, std::int64_t) {
    return ThcEncode{x.a.data(), x.c.data(), kSeed, x.bytes.data(), block, 15.0f, 3.5f, 0x9876543210, 3};
  });
  check(target, "thc_add_decoded", &KernelTable::thc_add_decoded, [&](Buffers& x, std::int64_t) {
    return ThcAddDecoded{x.c.data(), kSeed, x.bytes.data(), x.a.data(), block, 0.1f, 2.0f, 0.3f};
  });
}

void check_eden(const std::string& target, int bits, int group) {
  static const std::int32_t seed = -5;
  static const float values[] = {0.1f,  0.4f,  0.7f,  0.9f,  1.3f, 1.6f, 2.1f, 2.7f,
                                 -1.0f, -2.0f, -3.0f, -4.0f, 5.0f, 6.0f, 7.0f, 8.0f};
  static const std::vector<std::uint16_t> words(512, 0x1234);
  const Eden form = {&seed, 1024, 512, bits, group, values, values, words.data()};
  check(target, "eden_encode", &KernelTable::eden_encode, [&](Buffers& x, std::int64_t) {
    return EdenEncode{form, x.a.data(), x.c.data(), x.bytes.data()};
  });
  check(target, "eden_add_decoded", &KernelTable::eden_add_decoded, [&](Buffers& x, std::int64_t) {
    return EdenAddDecoded{form, x.c.data(), x.bytes.data(), x.a.data(), 0.3f};
  });
}

void check_tiles(const std::string& target, std::int64_t height, std::int64_t width) {
  constexpr std::int64_t kWaves = 3;
  std::vector<float> left(std::size_t(kWaves * height)), wide(std::size_t(kWaves * width));
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = float(i % 7) / 3 - 1.0f;
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = float(i % 5) / 9 + 0.1f;
  compare(target, "add_waves", [&](Buffers& x, std::int64_t n) {
    if (n < height * (width + 3)) return;
    const float* const waves[kWaves] = {wide.data(), wide.data() + width, wide.data() + 2 * width};
    active().add_waves({left.data(), waves, kWaves, height, width, x.a.data(), width + 3, 0.3f}, 0, height);
  });
}

void check_all(const std::string& target) {
  check(target, "count_ones", &KernelTable::count_ones, [](Buffers& x, std::int64_t n) {
    return CountOnes{{x.bytes.data(), n / 9}, n, reinterpret_cast<std::int64_t*>(x.c.data())};
  });
  for (const std::int64_t width : {1, 16, 17, 64}) check_tiles(target, 5, width);
  for (const std::int64_t block : {16, 64, 1024}) check_thc(target, block);
  for (int bits = 1; bits <= 4; ++bits) check_eden(target, bits, 1);
  for (const int group : {16, 32, 64}) check_eden(target, 8, group);
}

}  // namespace

int main() {
  int compared = 0;
  for (const std::string& target : targets()) {
    if (target == "scalar") continue;
    check_all(target);
    for (const Suite* suite = Suite::first; suite != nullptr; suite = suite->next) suite->check(target);
    std::printf("%s compared with scalar\n", target.c_str());
    ++compared;
  }
  std::printf("%d targets, %d failures\n", compared, failures);
  return failures != 0 || compared == 0;
}
