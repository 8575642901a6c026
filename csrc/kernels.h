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

// Bytes of a block lie in `stream` from block * ceil(block / 5) on, `lengths` of them.
struct ThreeLc {
  float* scales;
  std::int16_t* lengths;
  std::uint8_t* stream;
  std::int64_t block;
  float sparsity;
};

struct ThreeLcEncode : ThreeLc {
  const float* x;
};

// `status` may be null; otherwise the old residual goes to `grad` and a sum that is not finite sets the status.
struct Feedback {
  float* grad;
  float* residual;
  std::int32_t* status;
};

struct ThreeLcEncodeFeedback : Feedback, ThreeLc {};

// Here the blocks lie side by side in the `bytes` of a stream.
struct ThreeLcAddDecoded {
  Rows scales, lengths, stream;
  std::int64_t bytes;
  float* out;
  std::int64_t block;
  float scale;
};

struct BlockNorms {
  const float* x;
  float* norms;
  std::int64_t block;
};

// `codes` are a byte for each coordinate; the last block is padded to a power of two.
struct ThcEncode {
  const float* x;
  const float* norms;
  const std::int64_t* seed;  // of the signs: key and step
  std::uint8_t* codes;
  std::int64_t block;
  float levels, factor;  // factor: levels / (2 clip)
  std::uint64_t key, step;
};

struct ThcAddDecoded {
  const float* norms;
  const std::int64_t* seed;
  const std::uint8_t* codes;
  float* out;
  std::int64_t block;
  float step;  // 2 / (levels * ranks)
  float clip, scale;
};

struct TwobitEncode {
  const float* x;
  std::uint8_t* codes;
  float fire;  // the least magnitude that is sent
};

struct TwobitEncodeFeedback : Feedback {
  std::uint8_t* codes;
  float fire;       // the least magnitude that is sent
  float threshold;  // what is sent
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
  float threshold, step;
};

// `steps` without data: every rank steps by one.
struct OnebitAddDecoded {
  Rows codes, steps;
  float* out;
  float scale;
};

// Of |x|, or of |x + residual| where there is one: a sum for each block.
struct MagnitudeSums {
  const float* x;
  const float* residual;
  float* sums;
  std::int64_t block;
};

struct SignEncode {
  const float* x;
  std::uint8_t* codes;
};

struct SignEncodeFeedback : Feedback {
  std::uint8_t* codes;
};

struct SignAddDecoded {
  Rows codes;
  float* out;
  float scale;
};

struct SignVote {
  float* mean;
  float tie;
};

// `status` may be null; otherwise the old momentum goes to `grad` and a new one that is not finite sets the status.
struct MomentumUpdate {
  float* grad;
  float* momentum;
  std::int32_t* status;
  float beta, rest;
};

struct SignumEncode : MomentumUpdate {
  std::uint8_t* codes;
};

// Signs by blocks: `levels` are one number for each block (a scale), or two (the mean below zero, then the other).
struct BlockSigns {
  float* levels;
  std::uint8_t* codes;
  std::int64_t block;
};

struct BlockSignEncode : BlockSigns {
  const float* x;
};

struct BlockSignEncodeFeedback : Feedback, BlockSigns {};

struct BlockSignAddDecoded {
  Rows levels, codes;
  float* out;
  std::int64_t block;
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
  float top;     // the highest level
  bool powers;   // levels stand for powers of two
  float shrink;  // what is decoded is multiplied by this, and so is what is subtracted from the residual
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
  float top;
  bool powers;
};

// One norm for the whole tensor, known before: norms[0].
struct RoundEncode : Qsgd {
  const float* x;
};

struct RoundKeep : Qsgd {
  float* residual;
};

// For each segment of kMomentSegment elements four numbers: the largest magnitude, the origin (the first element if
// `centred`, else 0), the sum of the distances from it, and the sum of their squares.
constexpr std::int64_t kMomentSegment = 4096;

struct Moments {
  const float* x;
  float* table;
  bool centred;
};

struct MomentsFeedback : Feedback {
  float* table;
  bool centred;
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

// A count sketch: `rows` times `columns` counters, columns a multiple of 16. Ranges are those of the kernel's comment.
struct SketchAdd {
  const float* x;
  float* table;
  int rows;
  std::int64_t columns;
  std::uint64_t key, step;
  std::int64_t n;
};

struct SketchEstimate {
  const float* table;
  float* out;
  int rows;
  std::int64_t columns;
  std::uint64_t key, step;
};

// What exceeds a threshold in a range of whole segments.
struct ThresholdScan : Feedback {  // without feedback grad and residual are null
  const float* x;                  // with feedback the residual
  std::uint32_t least;             // magnitudes above it are sent, as bits without the sign
  float* values;                   // of this range, with room for all of it
  std::uint8_t* bitmap;            // of the tensor, in whole 16 bits
  std::int32_t* counts;            // of each segment of the tensor
  std::int64_t* found;             // by this range
};

// One line per kernel: the name of the function in csrc/kernels/<name>.h and the type of its arguments.
#define GRADWIRE_KERNELS(X)                          \
  X(accumulate, Feedback)                            \
  X(block_norms, BlockNorms)                         \
  X(cast_add_decoded, CastAddDecoded)                \
  X(cast_encode, CastEncode)                         \
  X(moments, Moments)                                \
  X(moments_feedback, MomentsFeedback)               \
  X(magnitude_sums, MagnitudeSums)                   \
  X(momentum_update, MomentumUpdate)                 \
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
  X(round_encode, RoundEncode)                       \
  X(round_keep, RoundKeep)                           \
  X(scaled_sign_add_decoded, BlockSignAddDecoded)    \
  X(scaled_sign_encode, BlockSignEncode)             \
  X(scaled_sign_encode_feedback, BlockSignEncodeFeedback)\
  X(sign_add_decoded, SignAddDecoded)                \
  X(sign_encode, SignEncode)                         \
  X(sign_encode_feedback, SignEncodeFeedback)        \
  X(sign_vote, SignVote)                             \
  X(signum_encode, SignumEncode)                     \
  X(sketch_add, SketchAdd)                           \
  X(sketch_estimate, SketchEstimate)                 \
  X(sparse_add_decoded, SparseAddDecoded)            \
  X(swap, Swap)                                      \
  X(thc_add_decoded, ThcAddDecoded)                  \
  X(thc_encode, ThcEncode)                           \
  X(three_lc_add_decoded, ThreeLcAddDecoded)         \
  X(three_lc_encode, ThreeLcEncode)                  \
  X(three_lc_encode_feedback, ThreeLcEncodeFeedback) \
  X(threshold_scan, ThresholdScan)                   \
  X(topk_emit, TopkEmit)                             \
  X(topk_emit_found, TopkEmitFound)                  \
  X(topk_scan, TopkScan)                             \
  X(topk_scan_feedback, TopkScanFeedback)            \
  X(triad, Triad)                                    \
  X(two_means_add_decoded, BlockSignAddDecoded)      \
  X(two_means_encode, BlockSignEncode)               \
  X(two_means_encode_feedback, BlockSignEncodeFeedback)\
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
