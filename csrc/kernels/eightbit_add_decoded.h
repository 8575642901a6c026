// Adds the 8-bit payloads of all ranks, one after the other, to a part of the sum that stays in the L1 cache.
#pragma once

#include "kernels/eightbit_codes.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kEightbitSum = 2048;

template <Codebook kind>
static void eightbit_add(float* out, const std::uint8_t* codes, const float* values, float scale, float norm,
                         std::int64_t count) {
  const Book book = book_of(values);
  const F32 step = set(norm / kLargest<kind> * scale);
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (; count - i >= kLanes; i += kLanes)
    store(out + i, load(out + i) + step * value_of<kind>(codes + i, book, kLanes));
  const int rest = int(count - i);
  if (rest > 0) store(out + i, load(out + i, rest) + step * value_of<kind>(codes + i, book, rest), rest);
}

static void eightbit_add_decoded(const EightbitAddDecoded& args, std::int64_t begin, std::int64_t end) {
  constexpr decltype(&eightbit_add<Codebook::linear>) add[] = {
      eightbit_add<Codebook::linear>, eightbit_add<Codebook::dynamic>, eightbit_add<Codebook::e4m3>,
      eightbit_add<Codebook::e5m2>};
  const EightbitAddDecoded k = args;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = k.block ? i / k.block : 0, after = k.block ? (block + 1) * k.block : end;
    const std::int64_t stop = after < end ? after : end, next = stop < i + kEightbitSum ? stop : i + kEightbitSum;
    for (std::int64_t w = 0; w < k.codes.count; ++w) {
      float norm;
      std::memcpy(&norm, k.scales.data + w * k.scales.stride + block * std::int64_t(sizeof norm), sizeof norm);
      const std::uint8_t* const codes = k.codes.data + w * k.codes.stride + i;
      if (2 * next - i < end) prefetch_run(codes + (next - i), next - i);
      add[int(k.kind)](k.out + i, codes, k.book, k.scale, norm, next - i);
    }
    i = next;
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
