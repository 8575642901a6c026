// Count sketches.
#include "bindings/common.h"
#include "buckets.h"

namespace gradwire::bindings {

namespace {

void check_sketch(int rows, Size columns, Size n) {
  if (rows < 1 || rows > 7) throw std::invalid_argument("rows must be from 1 to 7");
  if (columns % 16 != 0 || columns < 0 || (n > 0 && columns == 0))
    throw std::invalid_argument("columns must be a multiple of 16");
}

void sketch_add(Address x, Address table, int rows, Size columns, Size key, Size step, Size n, int threads) {
  check_sketch(rows, columns, n);
  const Size span = (n + 255) / 256 * 256;
  run(&KernelTable::sketch_add,
      {pointer<const float>(x, n), pointer<float>(table, n), rows, columns, std::uint64_t(key), std::uint64_t(step), n},
      rows * span, span > 0 ? span : 16, threads);
}

void sketch_estimate(Address table, Address out, int rows, Size columns, Size key, Size step, Size n, int threads) {
  check_sketch(rows, columns, n);
  run(&KernelTable::sketch_estimate,
      {pointer<const float>(table, n), pointer<float>(out, n), rows, columns, std::uint64_t(key), std::uint64_t(step)},
      n, 256, threads);
}

void bucket_encode_(Address x, Address bucket_of, Address codes, Address sums, Address counts, Size n, int threads) {
  bucket_encode({pointer<const float>(x, n), pointer<const std::uint8_t>(bucket_of, 1), pointer<std::uint8_t>(codes, n),
                 pointer<double>(sums, 1), pointer<std::int64_t>(counts, 1)},
                n, threads);
}

void bucket_add_decoded_(Address codes, Size ranks, Size codes_stride, Address levels, Size levels_stride,
                         Size levels_count, Address out, double scale, Size n, int threads) {
  if (levels_count < 0) throw std::invalid_argument("a number of levels must not be negative");
  bucket_add_decoded({rows(codes, ranks, codes_stride, n), rows(levels, ranks, levels_stride, levels_count),
                      levels_count, pointer<float>(out, n), float(scale)},
                     n, threads);
}

}  // namespace

void bind_sketch(nb::module_& m) {
  kernel(m, "bucket_encode", &bucket_encode_, "x"_a, "bucket_of"_a, "codes"_a, "sums"_a, "counts"_a);
  kernel(m, "bucket_add_decoded", &bucket_add_decoded_, "codes"_a, "ranks"_a, "codes_stride"_a, "levels"_a,
         "levels_stride"_a, "levels_count"_a, "out"_a, "scale"_a);
  kernel(m, "sketch_add", &sketch_add, "x"_a, "table"_a, "rows"_a, "columns"_a, "key"_a, "step"_a);
  kernel(m, "sketch_estimate", &sketch_estimate, "table"_a, "out"_a, "rows"_a, "columns"_a, "key"_a, "step"_a);
}

}  // namespace gradwire::bindings
