// Count sketches on a CPU: the kernels, and the operations of ops.py.
#include "family.h"

namespace gradwire {

// A count sketch: `rows` times `columns` counters, columns a multiple of 16.
struct SketchAdd {
  const float* x;
  float* table;
  int rows;
  std::int64_t columns;
  std::uint64_t key, step;
  std::int64_t n;
};
GRADWIRE_KERNEL_SECOND(sketch_add, SketchAdd)

struct SketchEstimate {
  const float* table;
  float* out;
  int rows;
  std::int64_t columns;
  std::uint64_t key, step;
};
GRADWIRE_KERNEL_SECOND(sketch_estimate, SketchEstimate)

constexpr std::int64_t kSketchGroup = 256;  // elements: 16 blocks, of which each row takes one batch of words

// What a row of the table stands for in the ranges of sketch_add: n in whole groups.
inline std::int64_t sketch_span(std::int64_t n) { return (n + kSketchGroup - 1) / kSketchGroup * kSketchGroup; }

}  // namespace gradwire

#if defined(GRADWIRE_TARGET)

#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
#include "kernels/philox_words.h"

namespace gradwire::GRADWIRE_TARGET {

// Where a count sketch puts a block of 16 elements: ops.py says which words decide.

constexpr int kSketchBlock = 16;
constexpr int kSketchMaxRows = 7;

struct SketchWords {
  std::uint32_t words[kPhiloxWords * kSketchMaxRows];
};

// The words of the group of blocks that starts at element `first`.
GRADWIRE_INLINE void sketch_words(SketchWords& out, const PhiloxStream& stream, std::int64_t first, int rows) {
  philox_words(out.words, std::uint64_t(first) / kSketchBlock * std::uint64_t(rows) / 2, rows, stream);
}

struct SketchPlace {
  std::int64_t line;    // first of 16 columns
  std::uint32_t signs;  // bit l: the sign of element l
  std::uint32_t twist;  // element l is in column l ^ twist of the line
};

GRADWIRE_INLINE SketchPlace sketch_place(const SketchWords& w, int block, int row, int rows, std::uint64_t lines) {
  const std::uint32_t* const pair = w.words + 2 * (block * rows + row);
  return {std::int64_t(pair[0] * lines >> 32) * kSketchBlock, pair[1] & 0xffff, pair[1] >> 28};
}

GRADWIRE_INLINE float sketch_sign(const SketchPlace& p, int lane) {
  return (p.signs >> lane & 1) != 0 ? -1.0f : 1.0f;
}

// Adds a vector into a count sketch. A range is one of rows, so that each sum is made in the order of the elements
// whatever the number of threads: row a stands for the places [a, a + 1) * span.

GRADWIRE_INLINE void sketch_add_block(float* line, const float* x, const SketchPlace& p, int count) {
  for (int lane = 0; lane < count; ++lane) {
    float& sum = line[std::uint32_t(lane) ^ p.twist];
    sum = sum + x[lane] * sketch_sign(p, lane);
  }
}

void sketch_add(const SketchAdd& args, std::int64_t begin, std::int64_t end) {
  const SketchAdd k = args;
  const std::int64_t span = sketch_span(k.n);
  if (span == 0) return;
  const PhiloxStream stream = philox_stream(k.key, k.step);
  const int first_row = int(begin / span), last_row = int((end + span - 1) / span);
  const std::uint64_t lines = std::uint64_t(k.columns / kSketchBlock);
  SketchWords words;
  for (std::int64_t i = 0; i < k.n; i += kSketchBlock) {
    if (i % kSketchGroup == 0) sketch_words(words, stream, i, k.rows);
    const int block = int(i % kSketchGroup) / kSketchBlock;
    const int count = k.n - i < kSketchBlock ? int(k.n - i) : kSketchBlock;
    for (int row = first_row; row < last_row; ++row) {
      const SketchPlace place = sketch_place(words, block, row, k.rows, lines);
      sketch_add_block(k.table + row * k.columns + place.line, k.x + i, place, count);
    }
  }
}

// Reads the elements of a vector off its count sketch: the median over the rows.

// The middle one of `rows` values in each lane, by compare and swap. A comparison with NaN is false, as in the
// reference.
GRADWIRE_INLINE void sketch_median(float (*values)[kSketchBlock], int rows) {
  for (int last = rows - 1; last >= rows / 2; --last)
    for (int i = 0; i < last; ++i)
      for (int lane = 0; lane < kSketchBlock; ++lane) {
        const float a = values[i][lane], b = values[i + 1][lane];
        const bool swap = b < a;
        values[i][lane] = swap ? b : a;
        values[i + 1][lane] = swap ? a : b;
      }
}

void sketch_estimate(const SketchEstimate& args, std::int64_t begin, std::int64_t end) {
  const SketchEstimate k = args;
  const PhiloxStream stream = philox_stream(k.key, k.step);
  const std::uint64_t lines = std::uint64_t(k.columns / kSketchBlock);
  SketchWords words;
  float values[kSketchMaxRows][kSketchBlock];
  for (std::int64_t i = begin; i < end; i += kSketchBlock) {
    if (i % kSketchGroup == 0) sketch_words(words, stream, i, k.rows);
    for (int row = 0; row < k.rows; ++row) {
      const SketchPlace place = sketch_place(words, int(i % kSketchGroup) / kSketchBlock, row, k.rows, lines);
      const float* const line = k.table + row * k.columns + place.line;
      for (int lane = 0; lane < kSketchBlock; ++lane)
        values[row][lane] = line[std::uint32_t(lane) ^ place.twist] * sketch_sign(place, lane);
    }
    sketch_median(values, k.rows);
    const std::int64_t left = end - i < kSketchBlock ? end - i : kSketchBlock;
    std::memcpy(k.out + i, values[k.rows / 2], sizeof(float) * std::size_t(left));
  }
}

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"

#else

#include "operation.h"
#if defined(GRADWIRE_SELFTEST)
#include "tests/selftest.h"
#endif

namespace gradwire::operations {

namespace {

// The columns of a table.
Size columns_of(Size counters, int rows, Size n) {
  if (rows < 1 || rows > 7) throw std::invalid_argument("rows must be from 1 to 7");
  if (counters % (16 * rows) != 0 || counters < 0 || (n > 0 && counters == 0))
    throw std::invalid_argument("columns must be a multiple of 16");
  return counters / rows;
}

void sketch_add(const float* x, float* table, int rows, Size key, Size step, Size counters, Size n, int threads) {
  const Size span = sketch_span(n);
  const SketchAdd args = {x, table, rows, columns_of(counters, rows, n), std::uint64_t(key), std::uint64_t(step), n};
  run(kernels::sketch_add, args, rows * span, span > 0 ? span : 16, threads);
}
GRADWIRE_OPERATION(sketch_add)

void sketch_estimate(const float* table, float* out, int rows, Size key, Size step, Size counters, Size n,
                     int threads) {
  const Size columns = columns_of(counters, rows, n);
  run(kernels::sketch_estimate, {table, out, rows, columns, std::uint64_t(key), std::uint64_t(step)}, n, kSketchGroup,
      threads);
}
GRADWIRE_OPERATION(sketch_estimate)

}  // namespace

#if defined(GRADWIRE_SELFTEST)
GRADWIRE_SELFTEST_OF(sketches) {
  using namespace selftest;
  constexpr Size kColumns = 16;
  for (const int rows : {1, 3}) {
    compare(target, "sketch_add", [=](Buffers& x, Size n) {
      sketch_add(x.a.data(), x.c.data(), rows, 0x9876543210, 3, rows * kColumns, n, 1);
    });
    check(target, "sketch_estimate", kernels::sketch_estimate, [=](Buffers& x, Size) {
      return SketchEstimate{x.c.data(), x.a.data(), rows, kColumns, 0x9876543210, 3};
    });
  }
}
#endif

}  // namespace gradwire::operations

#endif
