// What mark_drawn marks, side by side, in one pass.
#pragma once

#include "kernels/mark_drawn.h"
#include "kernels/take_beyond.h"

namespace gradwire::GRADWIRE_TARGET {

static_assert(kDrawn == kTakeBlock, "a block is drawn and taken");

void take_drawn(const TakeDrawn& args, std::int64_t begin, std::int64_t end) {
  const TakeDrawn k = args;
  const PhiloxStream stream = philox_stream(k.key, k.step);
  std::uint32_t words[kDrawn];
  std::uint8_t whole[kDrawn / 8], drawn[kDrawn / 8];
  for (std::int64_t first = begin; first < end; first += kDrawn) {
    const std::int64_t count = end - first < kDrawn ? end - first : kDrawn;
    const MarkDrawn mark = {{drawn, nullptr}, {whole, nullptr}, k.x + first, k.s, k.key, k.step};
    philox_words(words, std::uint64_t(first / 4), (count + kPhiloxWords - 1) / kPhiloxWords, stream);
    Found found = {0, 0};
    std::int64_t i = 0;
    for (; count - i >= kLanes; i += kLanes) mark_drawn_step(mark, i, words + i, kLanes, found);
    if (i < count) mark_drawn_step(mark, i, words + i, int(count - i), found);
    if (found.whole > 0) take_block(k.whole, k.x, whole, first, first + count);
    if (found.drawn > 0) take_block(k.drawn, k.x, drawn, first, first + count);
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
