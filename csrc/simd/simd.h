// 16 lanes at a time: the vector types of the target being compiled, and what can be written for all of them.
//
//   F32   16 float32           + - * / sqrt min ge gt le lt select; mul_add_exact where a * b needs no rounding;
//                              swap_lanes<d>: lane i from lane i ^ d
//   U32   16 uint32            + - * & | ^ shl shr sar eq ge gt max_u32 min_u32 select
//   U64   8 uint64             ^ xor3 high_half mul_low_halves store_low_halves: what Philox needs
//   bits of words: gather_bits and scatter_bits, as pext and pdep
//   Table4, Table16, Table128: values looked up by the low bits of each lane; Table256: two vectors by 32 bytes
//   Mask  a truth value a lane, & and_not; bits() and mask_of() convert to and from 16 bits, lane i in bit i
//
// Every operation rounds once, to nearest even, keeps subnormals, and gives the same bits on every target (NaNs may
// differ in their payload). Memory need not be aligned.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define GRADWIRE_INLINE static inline __attribute__((always_inline))
#define GRADWIRE_LAMBDA __attribute__((always_inline))

namespace gradwire::GRADWIRE_TARGET {
constexpr int kLanes = 16;
}

#include GRADWIRE_TARGET_HEADER

// A loop over vectors that stay in registers, written out where there are as many: elsewhere that takes long to compile
// and gains nothing. kFewRegisters is a constant of the target.
#define GRADWIRE_UNROLL(count) GRADWIRE_PRAGMA(GCC unroll kFewRegisters ? 1 : count)

namespace gradwire::GRADWIRE_TARGET {

// The table does not fit into registers, and its values are read one by one: a gather takes longer.
struct Table256 { const float* values; };
GRADWIRE_INLINE Table256 table256(const float* p) { return {p}; }
GRADWIRE_INLINE void lookup(const Table256& t, const std::uint8_t* p, F32& first, F32& second) {
  float lanes[2 * kLanes];
  for (int i = 0; i < 2 * kLanes; ++i) lanes[i] = t.values[p[i]];
  first = load(lanes), second = load(lanes + kLanes);
}

// The first `count` lanes from or to memory, nothing beyond; lanes not loaded are zero. For a constant count of
// kLanes the compiler drops the slow branch, so one `step` serves the body of a loop and its tail.
GRADWIRE_INLINE F32 load(const float* p, int count) {
  if (count == kLanes) return load(p);
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, sizeof(float) * count);
  return load(lanes);
}

// The same, asking for what a loop over an array will need 4 KB later: the CPU's own prefetcher stops at the end of a
// page. Measured on DRAM and in L3: 1.1 to 1.3 times as fast.
constexpr std::int64_t kAhead = 1024;

GRADWIRE_INLINE F32 load_ahead(const float* p, int count, std::int64_t ahead = kAhead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + 4 * std::uintptr_t(ahead)));
  return load(p, count);
}

// For a loop that goes over each block a second time: the next one.
GRADWIRE_INLINE std::int64_t block_ahead(std::int64_t block) { return block < kAhead ? kAhead : block; }

// Asks for memory that is read next, a little at a time: a CPU does not foresee where each of many streams goes on.
GRADWIRE_INLINE void prefetch_run(const std::uint8_t* p, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

GRADWIRE_INLINE void store(float* p, F32 x, int count) {
  if (count == kLanes) return store(p, x);
  float lanes[kLanes];
  store(lanes, x);
  std::memcpy(p, lanes, sizeof(float) * count);
}

GRADWIRE_INLINE U32 load_u16(const void* p, int count) {
  if (count == kLanes) return load_u16(p);
  std::uint16_t lanes[kLanes] = {};
  std::memcpy(lanes, p, sizeof(std::uint16_t) * count);
  return load_u16(lanes);
}

GRADWIRE_INLINE void store_u16(void* p, U32 x, int count) {
  if (count == kLanes) return store_u16(p, x);
  std::uint16_t lanes[kLanes];
  store_u16(lanes, x);
  std::memcpy(p, lanes, sizeof(std::uint16_t) * count);
}

GRADWIRE_INLINE U32 load_u8(const void* p, int count) {
  if (count == kLanes) return load_u8(p);
  std::uint8_t lanes[kLanes] = {};
  std::memcpy(lanes, p, std::size_t(count));
  return load_u8(lanes);
}

GRADWIRE_INLINE void store_u8(void* p, U32 x, int count) {
  if (count == kLanes) return store_u8(p, x);
  std::uint8_t lanes[kLanes];
  store_u8(lanes, x);
  std::memcpy(p, lanes, std::size_t(count));
}

GRADWIRE_INLINE F32 load_f16(const void* p, int count) {
  if (count == kLanes) return load_f16(p);
  std::uint16_t lanes[kLanes] = {};
  std::memcpy(lanes, p, sizeof(std::uint16_t) * count);
  return load_f16(lanes);
}

GRADWIRE_INLINE void store_f16(void* p, F32 x, int count) {
  if (count == kLanes) return store_f16(p, x);
  std::uint16_t lanes[kLanes];
  store_f16(lanes, x);
  std::memcpy(p, lanes, sizeof(std::uint16_t) * count);
}

GRADWIRE_INLINE U32 abs_bits(F32 x) { return as_u32(x) & set_u32(0x7fffffff); }

GRADWIRE_INLINE std::uint16_t bits_of_count(int count) { return std::uint16_t((1u << count) - 1); }

GRADWIRE_INLINE int count_of(Mask m) { return __builtin_popcount(bits(m)); }

// Without the lanes from `count` on.
GRADWIRE_INLINE Mask first_of(Mask m, int count) { return count == kLanes ? m : m & mask_of(bits_of_count(count)); }

#if !defined(GRADWIRE_FAST_BITS)
// After H. S. Warren, "Hacker's Delight", section 7-4: the moves that bring the bits of a mask side by side.
struct BitMoves { std::uint64_t of[6]; };
GRADWIRE_INLINE BitMoves bit_moves(std::uint64_t mask) {
  BitMoves moves;
  std::uint64_t zeros = ~mask << 1;
  for (int i = 0; i < 6; ++i) {
    std::uint64_t odd = zeros ^ zeros << 1;
    for (int j = 2; j < 64; j *= 2) odd ^= odd << j;
    moves.of[i] = odd & mask;
    mask = (mask ^ moves.of[i]) | moves.of[i] >> (1 << i);
    zeros &= ~odd;
  }
  return moves;
}

// The bits of x that the mask selects, side by side from the lowest on.
GRADWIRE_INLINE std::uint64_t gather_bits(std::uint64_t x, std::uint64_t mask) {
  const BitMoves moves = bit_moves(mask);
  x &= mask;
  for (int i = 0; i < 6; ++i) {
    const std::uint64_t moved = x & moves.of[i];
    x = (x ^ moved) | moved >> (1 << i);
  }
  return x;
}

// The lowest bits of x, in order, at the places that the mask selects.
GRADWIRE_INLINE std::uint64_t scatter_bits(std::uint64_t x, std::uint64_t mask) {
  const BitMoves moves = bit_moves(mask);
  for (int i = 5; i >= 0; --i) x = (x & ~moves.of[i]) | ((x << (1 << i)) & moves.of[i]);
  return x & mask;
}
#endif

// Remembers in `worst` the largest magnitude seen; flag_nonfinite() then sets the status to 1 if that is no number.
GRADWIRE_INLINE void watch(U32& worst, F32 x) { worst = max_u32(worst, abs_bits(x)); }

GRADWIRE_INLINE void flag_nonfinite(std::int32_t* status, U32 worst) {
  if (reduce_max(worst) >= 0x7f800000) __atomic_fetch_or(status, 1, __ATOMIC_RELAXED);
}

}  // namespace gradwire::GRADWIRE_TARGET

// The kernel `name` over a range, from name##_step(args, first element, number of elements), `width` at a time.
// The copy of the arguments is one that no store through a pointer can change: the compiler keeps it in registers.
#define GRADWIRE_RANGE_KERNEL(name, Args, width)                                 \
  void name(const Args& args, std::int64_t begin, std::int64_t end) {            \
    const Args k = args;                                                         \
    std::int64_t i = begin;                                                      \
    for (; end - i >= (width); i += (width)) name##_step(k, i, (width));         \
    if (i < end) name##_step(k, i, int(end - i));                                \
  }

// The same for a kernel that watches its values for NaN and infinity: the step has `worst` as a fourth argument, and
// where `status` is not null it is set in the end.
#define GRADWIRE_WATCHING_KERNEL(name, Args, width)                              \
  void name(const Args& args, std::int64_t begin, std::int64_t end) {            \
    const Args k = args;                                                         \
    U32 worst = set_u32(0);                                                      \
    std::int64_t i = begin;                                                      \
    for (; end - i >= (width); i += (width)) name##_step(k, i, (width), worst);  \
    if (i < end) name##_step(k, i, int(end - i), worst);                         \
    if (k.status) flag_nonfinite(k.status, worst);                               \
  }
