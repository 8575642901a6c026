// The first pass of top-k: sorts out the elements by a bracket around the expected k-th largest magnitude.
#pragma once

#include "kernels/topk_bracket.h"

namespace gradwire::GRADWIRE_TARGET {

void topk_scan(const TopkScan& args, std::int64_t begin, std::int64_t end) {
  const TopkScan k = args;
  Tally t = {0, 0};
  std::int64_t i = begin;
  for (; end - i >= kLanes; i += kLanes) sort_out(k, load_ahead(k.x + i, kLanes), i - begin, kLanes, t);
  if (i < end) sort_out(k, load(k.x + i, int(end - i)), i - begin, int(end - i), t);
  *k.tally = t;
}

}  // namespace gradwire::GRADWIRE_TARGET
