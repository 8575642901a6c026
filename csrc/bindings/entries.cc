// Elements that are marked by a bit each.
#include "bindings/common.h"
#include "entries.h"
#include "exponents.h"
#include "marks.h"
#include "tiles.h"

namespace gradwire::bindings {

namespace {

Marks marks(Address bitmap, Address counts, Size n) {
  return {pointer<std::uint8_t>(bitmap, n), pointer<std::int32_t>(counts, n)};
}

void mark_beyond(Address x, Address bitmap, Address counts, double high, double low, Size n, int threads) {
  run(&KernelTable::mark_beyond,
      {marks(bitmap, counts, n), pointer<const float>(x, n), float(high), float(low)}, n, kMarkSegment, threads);
}

void mark_drawn(Address x, Address bitmap, Address counts, Address whole, Address whole_counts, double s, Size key,
                Size step, Size n, int threads) {
  run(&KernelTable::mark_drawn,
      {marks(bitmap, counts, n), marks(whole, whole_counts, n), pointer<const float>(x, n), float(s),
       std::uint64_t(key), std::uint64_t(step)},
      n, kMarkSegment, threads);
}

void take_marked(Address x, Address bitmap, Address counts, Address values, Address indices, Size k, Size n,
                 int threads) {
  const auto starts = starts_of(pointer<const std::int32_t>(counts, n), mark_segments(n), k);
  run(&KernelTable::take_marked,
      {pointer<const float>(x, n), pointer<const std::uint8_t>(bitmap, n), starts.data(), pointer<float>(values, k),
       pointer<std::uint16_t>(indices, k), nullptr},
      n, kMarkSegment, threads);
}

EntryList entry_list(Address values, Address indices, Address counts, Size room, Size n) {
  return {pointer<float>(values, room), pointer<std::uint16_t>(indices, room), pointer<std::int32_t>(counts, n), room};
}

void take_beyond_(Address x, Address counts, Address values, Address indices, Size room, double high, double low, Size n,
                  int threads) {
  take_beyond({pointer<const float>(x, n), float(high), float(low), entry_list(values, indices, counts, room, n)}, n,
              threads);
}

void take_drawn_(Address x, Address whole_counts, Address whole_values, Address whole_indices, Size whole_room,
                 Address counts, Address values, Address indices, Size room, double s, Size key, Size step, Size n,
                 int threads) {
  take_drawn({pointer<const float>(x, n), float(s), std::uint64_t(key), std::uint64_t(step),
              entry_list(whole_values, whole_indices, whole_counts, whole_room, n),
              entry_list(values, indices, counts, room, n)},
             n, threads);
}

void exponent_encode_(Address x, Address bitmap, Address counts, Address codes, Size k, int top, Size n, int threads) {
  exponent_encode({pointer<const float>(x, n), pointer<const std::uint8_t>(bitmap, n),
                   pointer<const std::int32_t>(counts, n), pointer<std::uint8_t>(codes, k), k, top},
                  n, threads);
}

void exponent_add_decoded_(Address streams, Size count, Size stride, Size length, Address used, Size used_stride,
                           Address heads, Size heads_stride, Address out, double scale, Size n, int threads) {
  if (length < 0) throw std::invalid_argument("a length must not be negative");
  exponent_add_decoded({rows(streams, count, stride, length), length, rows(used, count, used_stride, 1),
                        rows(heads, count, heads_stride, 1), pointer<float>(out, n), float(scale)},
                       n, threads);
}

void tail_moments(Address x, Address table, double low, double high, double unit, Size n, int threads) {
  run(&KernelTable::tail_moments,
      {pointer<const float>(x, n), pointer<float>(table, n), float(low), float(high), float(unit)}, n, kTailSegment,
      threads);
}

void tile_topk_(Address x, Address values, Address places, Size size, Size k, Size tiles, int threads) {
  if (k < 1 || k > size || size > 65536) throw std::invalid_argument("k must be from 1 to the size of a tile");
  tile_topk({pointer<const float>(x, tiles), pointer<float>(values, tiles), pointer<std::uint16_t>(places, tiles), size,
             k},
            tiles, threads);
}

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
  kernel(m, "mark_beyond", &mark_beyond, "x"_a, "bitmap"_a, "counts"_a, "high"_a, "low"_a);
  kernel(m, "mark_drawn", &mark_drawn, "x"_a, "bitmap"_a, "counts"_a, "whole"_a, "whole_counts"_a, "s"_a, "key"_a,
         "step"_a);
  kernel(m, "take_marked", &take_marked, "x"_a, "bitmap"_a, "counts"_a, "values"_a, "indices"_a, "k"_a);
  kernel(m, "take_beyond", &take_beyond_, "x"_a, "counts"_a, "values"_a, "indices"_a, "room"_a, "high"_a, "low"_a);
  kernel(m, "take_drawn", &take_drawn_, "x"_a, "whole_counts"_a, "whole_values"_a, "whole_indices"_a, "whole_room"_a,
         "counts"_a, "values"_a, "indices"_a, "room"_a, "s"_a, "key"_a, "step"_a);
  kernel(m, "tail_moments", &tail_moments, "x"_a, "table"_a, "low"_a, "high"_a, "unit"_a);
  kernel(m, "exponent_encode", &exponent_encode_, "x"_a, "bitmap"_a, "counts"_a, "codes"_a, "k"_a, "top"_a);
  kernel(m, "exponent_add_decoded", &exponent_add_decoded_, "streams"_a, "count"_a, "stride"_a, "length"_a, "used"_a,
         "used_stride"_a, "heads"_a, "heads_stride"_a, "out"_a, "scale"_a);
  kernel(m, "tile_topk", &tile_topk_, "x"_a, "values"_a, "places"_a, "size"_a, "k"_a);
  m.def("waves_add_decoded", &waves_add_decoded_, "values"_a, "values_stride"_a, "places"_a, "places_stride"_a,
        "ranks"_a, "k"_a, "tall"_a, "height"_a, "wide"_a, "width"_a, "out"_a, "down"_a, "across"_a, "pitch"_a,
        "scale"_a, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace gradwire::bindings
