// Norms of blocks, random numbers, and rotations.
#include <cstring>

#include "bindings/common.h"

namespace gradwire::bindings {

namespace {

// A block is at most as long as the kernels have room for; see kernels/hadamard.h.
void check_rotation(Size block) {
  if (block < 16 || block > 16384 || (block & (block - 1)) != 0)
    throw std::invalid_argument("block must be a power of two from 16 to 16384");
}

void block_norms(Address x, Address norms, Size block, Size n, int threads) {
  if (block < 16 || block % 16 != 0) throw std::invalid_argument("block must be a multiple of 16");
  run(&KernelTable::block_norms, {pointer<const float>(x, n), pointer<float>(norms, n), block}, n, block, threads);
}

void thc_encode(Address x, Address norms, Address seed, Address codes, Size block, int levels, double clip, Size key,
                Size step, Size n, int threads) {
  check_rotation(block);
  const float factor = 0.5f * float(levels) / float(clip);
  const ThcEncode args = {
      pointer<const float>(x, n), pointer<const float>(norms, n), pointer<const std::int64_t>(seed, n),
      pointer<std::uint8_t>(codes, n), block, float(levels), factor, std::uint64_t(key), std::uint64_t(step)};
  run_backwards(&KernelTable::thc_encode, args, n, block, threads);
}

// Beyond 255 the codes of all ranks may have run over, and nothing that is decoded would mean anything.
void thc_add_decoded(Address norms, Address seed, Address codes, Address ranks, Address out, Size block, int levels,
                     double clip, double scale, Size n, int threads) {
  check_rotation(block);
  const std::int32_t world = n > 0 ? *pointer<const std::int32_t>(ranks, n) : 1;
  const bool fits = world > 0 && world <= 255 / levels;
  const float step = fits ? 2.0f / float(levels * world) : __builtin_nanf("");
  run(&KernelTable::thc_add_decoded,
      {pointer<const float>(norms, n), pointer<const std::int64_t>(seed, n), pointer<const std::uint8_t>(codes, n),
       pointer<float>(out, n), block, step, float(clip), float(scale)},
      n, block, threads);
}

Eden eden(Address seed, Size block, int bits, Size sent, int group, Address values, Address thresholds, Address words,
          Size n) {
  check_rotation(block);
  if (block < 64) throw std::invalid_argument("block must be at least 64");
  const bool single = group == 1 && bits >= 1 && bits <= 4;
  if (!single && !(bits == 8 && (group == 16 || group == 32 || group == 64)))
    throw std::invalid_argument("bits must be from 1 to 4, or 8 for groups of 16, 32 or 64");
  if (sent < 16 || sent > block || sent % (single ? 16 : group) != 0)
    throw std::invalid_argument("sent must be a multiple of 16 and of the group");
  return {pointer<const std::int32_t>(seed, n),
          block,
          sent,
          bits,
          group,
          pointer<const float>(values, single),
          reinterpret_cast<const float*>(thresholds),
          pointer<const std::uint16_t>(words, !single)};
}

void eden_encode(Address x, Address seed, Address scales, Address codes, Size block, int bits, Size sent, int group,
                 Address values, Address thresholds, Address words, Size n, int threads) {
  const EdenEncode args = {eden(seed, block, bits, sent, group, values, thresholds, words, n),
                           pointer<const float>(x, n), pointer<float>(scales, n), pointer<std::uint8_t>(codes, n)};
  run(&KernelTable::eden_encode, args, n, block, threads);
}

void eden_add_decoded(Address seed, Address scales, Address codes, Address out, Size block, int bits, Size sent,
                      int group, Address values, Address words, double scale, Size n, int threads) {
  const EdenAddDecoded args = {eden(seed, block, bits, sent, group, values, 0, words, n),
                               pointer<const float>(scales, n), pointer<const std::uint8_t>(codes, n),
                               pointer<float>(out, n), float(scale)};
  run(&KernelTable::eden_add_decoded, args, n, block, threads);
}

}  // namespace

void bind_rounding(nb::module_& m) {
  kernel(m, "block_norms", &block_norms, "x"_a, "norms"_a, "block"_a);
  kernel(m, "thc_encode", &thc_encode, "x"_a, "norms"_a, "seed"_a, "codes"_a, "block"_a, "levels"_a, "clip"_a, "key"_a,
         "step"_a);
  kernel(m, "thc_add_decoded", &thc_add_decoded, "norms"_a, "seed"_a, "codes"_a, "ranks"_a, "out"_a, "block"_a,
         "levels"_a, "clip"_a, "scale"_a);
  kernel(m, "eden_encode", &eden_encode, "x"_a, "seed"_a, "scales"_a, "codes"_a, "block"_a, "bits"_a, "sent"_a,
         "group"_a, "values"_a, "thresholds"_a, "words"_a);
  kernel(m, "eden_add_decoded", &eden_add_decoded, "seed"_a, "scales"_a, "codes"_a, "out"_a, "block"_a, "bits"_a,
         "sent"_a, "group"_a, "values"_a, "words"_a, "scale"_a);
}

}  // namespace gradwire::bindings
