// Arguments of: entropy coders.
#pragma once

#include <cstdint>

namespace gradwire {

constexpr int kRansStates = 8;

// A chunk on its way: symbol i belongs to state i % 8, and `at` is where the next word is.
struct RansChunk {
  std::uint32_t states[kRansStates];
  const std::uint8_t *at, *end;
  std::uint8_t* symbols;
  std::int64_t done, count;
};

// Symbols of the chunks [begin, end), eight of each at a time, as long as there are words for all of them: what is left
// of a chunk is for somebody who looks at each word. `slots`: see csrc/rans.h.
struct RansDecode {
  const std::uint32_t* slots;
  RansChunk* chunks;
};

}  // namespace gradwire
