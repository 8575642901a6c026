// The tags of elements, 2 bits each, and how many bytes their codes take.
#pragma once

#include "kernels/compensate.h"
#include "kernels/inceptionn_sizes.h"
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

GRADWIRE_INLINE U32 tags_of(const Classes& c) {
  const U32 small = select(c.longer, set_u32(2), select(c.sent, set_u32(1), set_u32(0)));
  return select(c.copied, set_u32(3), small);
}

template <bool fed>
GRADWIRE_INLINE U32 tags_at(const InceptionnTags& k, std::int64_t i, int count, U32& worst) {
  F32 x;
  if constexpr (fed) {
    x = compensate(k.feedback, i, count, worst);
    store(k.feedback.residual + i, x, count);
  } else {
    x = load_ahead(k.x + i, count);
  }
  return tags_of(classes_of(x, k.bound));
}

template <bool fed>
static inline void write_tags(const InceptionnTags& k, std::int64_t begin, std::int64_t end) {
  U32 worst = set_u32(0);
  std::int64_t i = begin;
  for (; end - i >= 4 * kLanes; i += 4 * kLanes) {
    U32 tags[4];
    for (int j = 0; j < 4; ++j) tags[j] = tags_at<fed>(k, i + j * kLanes, kLanes, worst);
    store_levels<2>(k.tags + i / 4, tags);
  }
  for (; i < end; i += kLanes) {
    const int count = end - i < kLanes ? int(end - i) : kLanes;
    store_levels<2>(k.tags + i / 4, tags_at<fed>(k, i, count, worst), count);
  }
  if (fed && k.feedback.status) flag_nonfinite(k.feedback.status, worst);
}

void inceptionn_tags(const InceptionnTags& args, std::int64_t begin, std::int64_t end) {
  const InceptionnTags k = args;
  if (k.feedback.residual)
    write_tags<true>(k, begin, end);
  else
    write_tags<false>(k, begin, end);
  inceptionn_sizes({k.tags, k.bytes}, begin, end);
}

}  // namespace gradwire::GRADWIRE_TARGET
