// Random words, from a key, a step and a position.
#pragma once

#include "kernels/philox_words.h"

namespace gradwire::GRADWIRE_TARGET {

void philox(const Philox& k, std::int64_t begin, std::int64_t end) {
  const std::int64_t whole = (end - begin) / kPhiloxWords, rest = (end - begin) % kPhiloxWords;
  const std::uint64_t counter = k.offset + std::uint64_t(begin) / 4;
  const PhiloxStream stream = philox_stream(k.key, k.step);
  philox_words(k.out + begin, counter, whole, stream);
  if (rest == 0) return;
  std::uint32_t words[kPhiloxWords];
  philox_words(words, counter + 8 * std::uint64_t(whole), 1, stream);
  std::memcpy(k.out + begin + kPhiloxWords * whole, words, sizeof(std::uint32_t) * std::size_t(rest));
}

}  // namespace gradwire::GRADWIRE_TARGET
