// The kernels: what each one is given, and the table that every SIMD target fills.
//
// A kernel is a serial function over the elements [begin, end) of its arguments. `begin` is a multiple of the
// alignment that module.cc names for it, so two ranges never touch the same byte of output.
#pragma once

#include <cstdint>

namespace gradwire {

// W payloads of equal length, `stride` bytes apart: views into one receive buffer.
struct Rows {
  const std::uint8_t* data;
  std::int64_t count;
  std::int64_t stride;
};

struct Triad {
  float* a;
  const float* b;
  const float* c;
  float s;
  bool past_cache;  // a is larger than a cache and aligned to a vector: write it without reading it first
};

struct Nonfinite {
  const float* x;
  std::int32_t* status;
};

struct Swap {
  float* a;
  float* b;
};

struct CastEncode {
  const float* x;
  std::uint8_t* out;
  float scale;
  bool bfloat;
};

struct CastAddDecoded {
  Rows payloads;
  float* out;
  float scale;
  bool bfloat;
};

struct TwobitEncode {
  const float* x;
  std::uint8_t* codes;
  float threshold;
};

// `status` may be null; otherwise the old residual goes to `grad` and a sum that is not finite sets the status.
struct Feedback {
  float* grad;
  float* residual;
  std::int32_t* status;
};

struct TwobitEncodeFeedback : Feedback {
  std::uint8_t* codes;
  float threshold;
};

struct TwobitAddDecoded {
  Rows codes;
  float* out;
  float step;
};

struct OnebitEncode {
  const float* x;
  std::uint8_t* codes;
  float threshold;
};

struct OnebitEncodeFeedback : Feedback {
  std::uint8_t* codes;
  float threshold;
};

struct OnebitAddDecoded {
  Rows codes;
  float* out;
  float scale;
};

// The words of the counters from `offset` on; see kernels/philox_words.h.
struct Philox {
  std::uint32_t* out;
  std::uint64_t key, step, offset;
};

struct Qsgd {
  float* norms;
  std::uint8_t* codes;
  int bits;
  std::int64_t block;
  bool l2;
  std::uint64_t key, step;
};

struct QsgdEncode : Qsgd {
  const float* x;
};

struct QsgdEncodeFeedback : Feedback, Qsgd {};

struct QsgdAddDecoded {
  Rows norms;
  Rows codes;
  float* out;
  int bits;
  std::int64_t block;
  float scale;
};

// The largest magnitude, as bits without the sign, joins what is at `out`.
struct Largest {
  const float* x;
  std::uint32_t* out;
};

struct LargestSum {
  const float *grad, *residual;
  std::uint32_t* out;
};

enum class Codebook : int { linear, dynamic, e4m3, e5m2 };

// `book` holds the 256 values of the codes, and what the encoder of "dynamic" needs. A block of 0 is the whole tensor,
// whose scale is there already.
struct Eightbit {
  float* scales;
  std::uint8_t* codes;
  const float* book;
  Codebook kind;
  std::int64_t block;
};

struct EightbitEncode : Eightbit {
  const float* x;
};

struct EightbitEncodeFeedback : Feedback, Eightbit {};

struct EightbitAddDecoded {
  Rows scales;
  Rows codes;
  float* out;
  const float* book;
  Codebook kind;
  std::int64_t block;
  float scale;
};

struct Natural {
  std::uint8_t* bases;
  std::uint8_t* codes;
  bool random;
  std::int64_t block;
  std::uint64_t key, step;
};

struct NaturalEncode : Natural {
  const float* x;
};

struct NaturalEncodeFeedback : Feedback, Natural {};

struct NaturalAddDecoded {
  Rows bases;
  Rows codes;
  float* out;
  std::int64_t block;
  float scale;
};

// One range of a tagged stream; see gradwire/ops/_inceptionn.py. `bytes` receives how many its codes take.
struct InceptionnTags {
  const float* x;
  std::uint8_t* tags;
  int bound;
  std::int64_t* bytes;
};

// The codes of a range begin at `codes` and end before `end`.
struct InceptionnCodes {
  const float* x;
  std::uint8_t *codes, *end;
  int bound;
};

struct InceptionnSizes {
  const std::uint8_t* tags;
  std::int64_t* bytes;
};

// Without tags every code is a float32. `end` is that of the stream, not of the range.
struct InceptionnAddDecoded {
  const std::uint8_t *tags, *codes, *end;
  float* out;
  int bound;
  float scale;
};

// How many magnitudes are above a bracket and inside it.
struct Tally {
  std::int64_t above, inside;
};

// The magnitudes larger than `low` and at most `high`, as bits without the sign. `found` and `places` receive the
// values inside and their distance from the range's begin, as far as there is room. Without places, `found` receives
// magnitudes; with them nothing counts as above.
struct Bracket {
  std::uint32_t low, high;
  std::uint32_t *found, *places;
  std::int64_t room;
  Tally* tally;
};

struct TopkScan : Bracket {
  const float* x;
};

struct TopkScanFeedback : Feedback, Bracket {};

// Keeps the magnitudes larger than `least`, and the first `ties` that equal it: `count` in all.
struct TopkEmit {
  const float* x;
  float* residual;  // set to zero where it is kept, or null
  std::uint32_t least;
  std::int64_t ties, count;
  float* values;
  std::uint16_t* indices;
  std::int32_t* counts;
};

// `x` is a list of values, with room for 16 more of `places`, where they are in the segments of the tensor.
struct TopkEmitFound : TopkEmit {
  std::uint32_t* places;
};

struct SparseAddDecoded {
  Rows values, indices, counts;
  std::int64_t k;  // values of a rank
  float* out;
  std::int64_t n;
  float scale;
};

// One line per kernel: the name of the function in csrc/kernels/<name>.h and the type of its arguments.
#define GRADWIRE_KERNELS(X)                          \
  X(cast_add_decoded, CastAddDecoded)                \
  X(cast_encode, CastEncode)                         \
  X(eightbit_add_decoded, EightbitAddDecoded)        \
  X(eightbit_encode, EightbitEncode)                 \
  X(eightbit_encode_feedback, EightbitEncodeFeedback)\
  X(inceptionn_add_decoded, InceptionnAddDecoded)    \
  X(inceptionn_codes, InceptionnCodes)               \
  X(inceptionn_sizes, InceptionnSizes)               \
  X(inceptionn_tags, InceptionnTags)                 \
  X(largest, Largest)                                \
  X(largest_sum, LargestSum)                         \
  X(natural_add_decoded, NaturalAddDecoded)          \
  X(natural_encode, NaturalEncode)                   \
  X(natural_encode_feedback, NaturalEncodeFeedback)  \
  X(nonfinite, Nonfinite)                            \
  X(onebit_add_decoded, OnebitAddDecoded)            \
  X(onebit_encode, OnebitEncode)                     \
  X(onebit_encode_feedback, OnebitEncodeFeedback)    \
  X(philox, Philox)                                  \
  X(qsgd_add_decoded, QsgdAddDecoded)                \
  X(qsgd_encode, QsgdEncode)                         \
  X(qsgd_encode_feedback, QsgdEncodeFeedback)        \
  X(sparse_add_decoded, SparseAddDecoded)            \
  X(swap, Swap)                                      \
  X(topk_emit, TopkEmit)                             \
  X(topk_emit_found, TopkEmitFound)                  \
  X(topk_scan, TopkScan)                             \
  X(topk_scan_feedback, TopkScanFeedback)            \
  X(triad, Triad)                                    \
  X(twobit_add_decoded, TwobitAddDecoded)            \
  X(twobit_encode, TwobitEncode)                     \
  X(twobit_encode_feedback, TwobitEncodeFeedback)

struct KernelTable {
  const char* target;
#define X(name, Args) void (*name)(const Args&, std::int64_t begin, std::int64_t end);
  GRADWIRE_KERNELS(X)
#undef X
};

}  // namespace gradwire
