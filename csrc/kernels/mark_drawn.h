// Marks elements at random, each with the probability |x| / s: |x| > u s, with u = (w + 2^31 + 1/2) / 2^32 of a random
// int32 w, in float64. Float32 decides all but a few: what is nearer to the edge than its error is looked at again.
#pragma once

#include "kernels/marks.h"
#include "kernels/philox_words.h"

namespace gradwire::GRADWIRE_TARGET {

constexpr std::int64_t kDrawn = 1024;  // words drawn at a time

// Below this the products of float32 could be subnormal, and then their error is not a share of them.
constexpr float kSureFrom = 0x1p-90f;

GRADWIRE_INLINE std::uint16_t drawn_one_by_one(const MarkDrawn& k, std::int64_t i, const std::uint32_t* words,
                                               std::uint16_t doubtful) {
  std::uint16_t marks = 0;
  for (std::uint32_t left = doubtful; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const double u = (double(words[lane] ^ 0x80000000) + 0.5) * 0x1p-32;
    if (u * double(k.s) < double(std::fabs(k.x[i + lane]))) marks = std::uint16_t(marks | 1u << lane);
  }
  return marks;
}

struct Found {
  std::int32_t whole, drawn;
};

GRADWIRE_INLINE void mark_drawn_step(const MarkDrawn& k, std::int64_t i, const std::uint32_t* words, int count,
                                     Found& found) {
  const F32 size = as_f32(abs_bits(load_ahead(k.x + i, count)));
  const F32 least = from_i32(shr(load_u32(words) ^ set_u32(0x80000000), 8)) * set(0x1p-24f);
  const F32 s = set(k.s), most = least + set(0x1p-24f);
  const std::uint16_t whole = bits_below(ge(size, s), count);
  std::uint16_t kept = bits_below(gt(size, most * s * set(1 + 0x1p-21f)), count);
  std::uint16_t left = bits_below(lt(size, least * s * set(1 - 0x1p-21f)), count);
  if (k.s < kSureFrom) kept = 0, left = 0;
  const std::uint16_t doubtful = std::uint16_t(~(whole | kept | left) & bits_of_count(count));
  if (__builtin_expect(doubtful != 0, 0))
    kept = std::uint16_t(kept | drawn_one_by_one(k, i, words, doubtful));
  found.whole += put_marks(k.whole.bitmap, i, whole, count);
  found.drawn += put_marks(k.bitmap, i, std::uint16_t(kept & ~whole), count);
}

void mark_drawn(const MarkDrawn& args, std::int64_t begin, std::int64_t end) {
  const MarkDrawn k = args;
  const PhiloxStream stream = philox_stream(k.key, k.step);
  std::uint32_t words[kDrawn];
  Found found = {0, 0};
  for (std::int64_t first = begin; first < end; first += kDrawn) {
    const std::int64_t stop = end - first < kDrawn ? end : first + kDrawn;
    philox_words(words, std::uint64_t(first / 4), (stop - first + kPhiloxWords - 1) / kPhiloxWords, stream);
    std::int64_t i = first;
    for (; stop - i >= kLanes; i += kLanes) mark_drawn_step(k, i, words + (i - first), kLanes, found);
    if (i < stop) mark_drawn_step(k, i, words + (i - first), int(stop - i), found);
    if (stop < end && stop % kMarkSegment != 0) continue;
    k.whole.counts[first / kMarkSegment] = found.whole, k.counts[first / kMarkSegment] = found.drawn;
    found = {0, 0};
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
