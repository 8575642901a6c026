// Count sketches.
#include "bindings/common.h"

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

}  // namespace

void bind_sketch(nb::module_& m) {
  kernel(m, "sketch_add", &sketch_add, "x"_a, "table"_a, "rows"_a, "columns"_a, "key"_a, "step"_a);
  kernel(m, "sketch_estimate", &sketch_estimate, "table"_a, "out"_a, "rows"_a, "columns"_a, "key"_a, "step"_a);
}

}  // namespace gradwire::bindings
