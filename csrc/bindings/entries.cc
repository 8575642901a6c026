// Waves of tiles.
#include "bindings/common.h"
#include "tiles.h"

namespace gradwire::bindings {

namespace {

void waves_add_decoded_(Address values, Size values_stride, Address places, Size places_stride, Size ranks, Size k,
                        Address tall, Size height, Address wide, Size width, Address out, Size down, Size across,
                        Size pitch, double scale, int threads) {
  if (k < 1 || height < 1 || width < 1 || pitch < across * width) throw std::invalid_argument("there is no such tile");
  const Size tiles = down * across;
  waves_add_decoded({rows(values, ranks, values_stride, tiles), rows(places, ranks, places_stride, tiles), k,
                     pointer<const float>(tall, height), height, pointer<const float>(wide, width), width,
                     pointer<float>(out, tiles), across, pitch, float(scale)},
                    tiles, threads);
}

}  // namespace

void bind_entries(nb::module_& m) {
  m.def("waves_add_decoded", &waves_add_decoded_, "values"_a, "values_stride"_a, "places"_a, "places_stride"_a,
        "ranks"_a, "k"_a, "tall"_a, "height"_a, "wide"_a, "width"_a, "out"_a, "down"_a, "across"_a, "pitch"_a,
        "scale"_a, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace gradwire::bindings
