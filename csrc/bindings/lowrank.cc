// Products with thin factors.
#include "lowrank.h"

#include "bindings/common.h"

namespace gradwire::bindings {

namespace {

Size area(Size rows, Size columns, Size rank) {
  if (rows < 0 || columns < 0) throw std::invalid_argument("a size must not be negative");
  if (rank < 1) throw std::invalid_argument("rank must be at least 1");
  return rows * columns;
}

void lowrank_left_(Address x, Address grad, Address status, Address right, Address left, Size rank, Size rows,
                   Size columns, int threads) {
  const Size n = area(rows, columns, rank);
  auto* const values = pointer<float>(x, n);
  lowrank_left({{values, {reinterpret_cast<float*>(grad), values, reinterpret_cast<std::int32_t*>(status)}, rows,
                 columns, rank}, pointer<const float>(right, rank * columns), nullptr},
               pointer<float>(left, rank * rows), threads);
}

void lowrank_right_(Address x, Address grad, Address status, Address left, Address right, Size rank, Size rows,
                    Size columns, int threads) {
  const Size n = area(rows, columns, rank);
  auto* const values = pointer<float>(x, n);
  lowrank_right({{values, {reinterpret_cast<float*>(grad), values, reinterpret_cast<std::int32_t*>(status)}, rows,
                  columns, rank}, pointer<const float>(left, rank * rows), nullptr},
                pointer<float>(right, rank * columns), threads);
}

void lowrank_add_decoded_(Address left, Address right, Address out, Size rank, double scale, Address status, Size rows,
                          Size columns, int threads) {
  const Size n = area(rows, columns, rank);
  lowrank_add_decoded({pointer<const float>(left, rank * rows), pointer<const float>(right, rank * columns),
                       pointer<float>(out, n), rows, columns, rank, float(scale),
                       reinterpret_cast<std::int32_t*>(status)}, threads);
}

// A function whose last arguments are the rows and columns of a matrix, and the number of threads.
template <class Function, class... Arguments>
void product(nb::module_& m, const char* name, Function function, const Arguments&... arguments) {
  m.def(name, function, arguments..., "rows"_a, "columns"_a, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_lowrank(nb::module_& m) {
  product(m, "lowrank_left", &lowrank_left_, "x"_a, "grad"_a, "status"_a, "right"_a, "left"_a, "rank"_a);
  product(m, "lowrank_right", &lowrank_right_, "x"_a, "grad"_a, "status"_a, "left"_a, "right"_a, "rank"_a);
  product(m, "lowrank_add_decoded", &lowrank_add_decoded_, "left"_a, "right"_a, "out"_a, "rank"_a, "scale"_a,
          "status"_a);
}

}  // namespace gradwire::bindings
