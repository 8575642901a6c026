// What a decoder of rANS looks up for x mod 4096.
#pragma once

#include <cstdint>

namespace gradwire {

constexpr int kRansBits = 12;
constexpr std::uint32_t kRansTotal = 1u << kRansBits;
constexpr std::uint32_t kRansLow = 1u << 16;  // a state between two symbols is at least this

// A symbol of frequency f and the distance from its start: f - 1, which has 12 bits, the distance, and the symbol.
constexpr std::uint32_t rans_slot(std::uint32_t frequency, std::uint32_t distance, std::uint32_t symbol) {
  return (frequency - 1) << 20 | distance << 8 | symbol;
}

}  // namespace gradwire
