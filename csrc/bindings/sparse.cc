// Places between their forms.
#include "bindings/common.h"
#include "places.h"

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

}  // namespace

void bind_sparse(nb::module_& m) {
  serial(m, "rice_encode", &convert_places<rice_encode, std::uint8_t>, "indices"_a, "counts"_a, "stream"_a, "k"_a);
  serial(m, "rice_decode", &convert_places<rice_decode, const std::uint8_t>, "indices"_a, "counts"_a, "stream"_a, "k"_a);
  serial(m, "bitmap_encode", &convert_places<bitmap_encode, std::uint8_t>, "indices"_a, "counts"_a, "bitmap"_a, "k"_a);
  serial(m, "bitmap_decode", &convert_places<bitmap_decode, const std::uint8_t>, "indices"_a, "counts"_a, "bitmap"_a,
         "k"_a);
}

}  // namespace gradwire::bindings
