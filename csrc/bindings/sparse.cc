// The largest elements, their places, and random ones.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "bindings/common.h"
#include "places.h"
#include "topk.h"

namespace gradwire::bindings {

namespace {

Places places(Address indices, Address counts, Size k, Size n) {
  if (k < 0 || k > n) throw std::invalid_argument("k must be from 0 to n");
  return {pointer<std::uint16_t>(indices, k), pointer<std::int32_t>(counts, n), k, n};
}

template <auto Function, class Byte>
void convert_places(Address indices, Address counts, Address stream, Size k, Size n) {
  Function(places(indices, counts, k, n), pointer<Byte>(stream, k));
}

Choice choice(Size seed, Size k, Size run, Size n) {
  if (run < 1 || k < 0 || k > (n + run - 1) / run) throw std::invalid_argument("there are not as many units");
  return {std::uint32_t(seed), k, run, n};
}

void randomk_encode_(Address x, Address values, Size seed, Size k, Size run, bool scaled, double scale, Size n,
                     int threads) {
  randomk_encode({choice(seed, k, run, n), pointer<const float>(x, n), pointer<float>(values, k), float(scale), scaled},
                 threads);
}

void randomk_add_decoded_(Address values, Address out, Size seed, Size k, Size run, double scale, Size n,
                          int threads) {
  randomk_add_decoded(
      {choice(seed, k, run, n), pointer<const std::uint8_t>(values, k), pointer<float>(out, n), float(scale)}, threads);
}

void check_k(Size k, Size n) {
  if (k < 0 || k > n) throw std::invalid_argument("k must be from 0 to n");
}

void topk_encode(Address x, Address values, Address indices, Address counts, Size k, Size n, int threads) {
  check_k(k, n);
  topk({{nullptr, nullptr, nullptr},
        pointer<const float>(x, n),
        pointer<float>(values, k),
        pointer<std::uint16_t>(indices, k),
        pointer<std::int32_t>(counts, n),
        k,
        n},
       threads);
}

void topk_encode_feedback(Address grad, Address residual, Address values, Address indices, Address counts,
                          Address status, Size k, Size n, int threads) {
  check_k(k, n);
  topk({feedback(grad, residual, status, n), pointer<const float>(residual, n), pointer<float>(values, k),
        pointer<std::uint16_t>(indices, k), pointer<std::int32_t>(counts, n), k, n},
       threads);
}

void sparse_add_decoded(Address values, Size values_stride, Address indices, Size indices_stride, Address counts,
                        Size counts_stride, Size ranks, Size k, Address out, double scale, Size n, int threads) {
  const Rows value_rows = rows(values, ranks, values_stride, k), index_rows = rows(indices, ranks, indices_stride, k),
             count_rows = rows(counts, ranks, counts_stride, n);
  std::vector<SparsePart> parts;
  for (Size w = 0; w < ranks; ++w)
    parts.push_back({value_rows.data + w * values_stride, index_rows.data + w * indices_stride,
                     count_rows.data + w * counts_stride, k, nullptr});
  run(&KernelTable::sparse_add_decoded, {parts.data(), ranks, pointer<float>(out, n), n, float(scale)}, n, 65536,
      threads);
}

// Of each part: the addresses of values, indices, counts and levels, and how many entries there are.
void parts_add_decoded(const std::vector<std::tuple<Address, Address, Address, Address, Size>>& parts, Address out,
                       double scale, Size n, int threads) {
  std::vector<SparsePart> found;
  for (const auto& [values, indices, counts, levels, k] : parts)
    found.push_back({pointer<const std::uint8_t>(values, k), pointer<const std::uint8_t>(indices, k),
                     pointer<const std::uint8_t>(counts, n), k, reinterpret_cast<const float*>(levels)});
  run(&KernelTable::sparse_add_decoded, {found.data(), Size(found.size()), pointer<float>(out, n), n, float(scale)}, n,
      65536, threads);
}

}  // namespace

void bind_sparse(nb::module_& m) {
  kernel(m, "topk_encode", &topk_encode, "x"_a, "values"_a, "indices"_a, "counts"_a, "k"_a);
  kernel(m, "topk_encode_feedback", &topk_encode_feedback, "grad"_a, "residual"_a, "values"_a, "indices"_a, "counts"_a,
         "status"_a, "k"_a);
  kernel(m, "sparse_add_decoded", &sparse_add_decoded, "values"_a, "values_stride"_a, "indices"_a, "indices_stride"_a,
         "counts"_a, "counts_stride"_a, "ranks"_a, "k"_a, "out"_a, "scale"_a);
  kernel(m, "parts_add_decoded", &parts_add_decoded, "parts"_a, "out"_a, "scale"_a);
  serial(m, "rice_encode", &convert_places<rice_encode, std::uint8_t>, "indices"_a, "counts"_a, "stream"_a, "k"_a);
  serial(m, "rice_decode", &convert_places<rice_decode, const std::uint8_t>, "indices"_a, "counts"_a, "stream"_a, "k"_a);
  serial(m, "bitmap_encode", &convert_places<bitmap_encode, std::uint8_t>, "indices"_a, "counts"_a, "bitmap"_a, "k"_a);
  serial(m, "bitmap_decode", &convert_places<bitmap_decode, const std::uint8_t>, "indices"_a, "counts"_a, "bitmap"_a,
         "k"_a);
  kernel(m, "randomk_encode", &randomk_encode_, "x"_a, "values"_a, "seed"_a, "k"_a, "run"_a, "scaled"_a, "scale"_a);
  kernel(m, "randomk_add_decoded", &randomk_add_decoded_, "values"_a, "out"_a, "seed"_a, "k"_a, "run"_a, "scale"_a);
}

}  // namespace gradwire::bindings
