// The tags of elements, 2 bits each, and how many bytes their codes take.
#pragma once

#include "kernels/qsgd_codes.h"

namespace gradwire::GRADWIRE_TARGET {

// Each is a part of the one before: what is sent at all, in more than 8 bits, as it is.
struct Classes {
  Mask sent, longer, copied;
};

GRADWIRE_INLINE Classes classes_of(F32 x, int bound) {
  const U32 magnitude = abs_bits(x);
  const std::uint32_t one = 127u << 23, longer = std::uint32_t(134 - bound) << 23;
  return {ge(magnitude, set_u32(std::uint32_t(127 - bound) << 23)),
          ge(magnitude, set_u32(longer < one ? longer : one)), ge(magnitude, set_u32(one))};
}

// Of the four values that of each lane's class.
GRADWIRE_INLINE U32 by_class(const Classes& c, std::uint32_t dropped, std::uint32_t sent, std::uint32_t longer,
                             std::uint32_t copied) {
  const U32 small = select(c.longer, set_u32(longer), select(c.sent, set_u32(sent), set_u32(dropped)));
  return select(c.copied, set_u32(copied), small);
}

GRADWIRE_INLINE U32 sizes_of(const Classes& c) { return by_class(c, 0, 1, 2, 4); }

GRADWIRE_INLINE std::int64_t sum_of(U32 x) {
  std::uint32_t lanes[kLanes];
  store_u32(lanes, x);
  std::int64_t sum = 0;
  for (const std::uint32_t lane : lanes) sum += lane;
  return sum;
}

static void inceptionn_tags(const InceptionnTags& args, std::int64_t begin, std::int64_t end) {
  const InceptionnTags k = args;
  U32 bytes = set_u32(0);
  for (std::int64_t i = begin; i < end; i += kLanes) {
    const int count = end - i < kLanes ? int(end - i) : kLanes;
    const Classes c = classes_of(load_ahead(k.x + i, count), k.bound);
    store_levels<2>(k.tags + i / 4, by_class(c, 0, 1, 2, 3), count);
    bytes = bytes + sizes_of(c);
  }
  *k.bytes = sum_of(bytes);
}

}  // namespace gradwire::GRADWIRE_TARGET
