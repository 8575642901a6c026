// Marked elements written side by side in one pass over the tensor, however many there are.
#pragma once

#include "kernels.h"

namespace gradwire {

// The entries that there is room for; `counts` says how many there are in each segment.
struct EntryList {
  float* values;
  std::uint16_t* indices;
  std::int32_t* counts;
  std::int64_t room;
};

struct Beyond {
  const float* x;
  float high, low;
  EntryList entries;
};

struct Drawn {
  const float* x;
  float s;
  std::uint64_t key, step;
  EntryList whole, drawn;
};

void take_beyond(const Beyond& b, std::int64_t n, int threads);
void take_drawn(const Drawn& d, std::int64_t n, int threads);

}  // namespace gradwire
