// Entropy coders.
#include "bindings/common.h"
#include "entropy.h"

namespace gradwire::bindings {

namespace {

template <void (*Coder)(const EntropyEncode&, int)>
void entropy_encode(Address symbols, Address table, Address sizes, Address out, Size room, Size n, int threads) {
  Coder({pointer<const std::uint8_t>(symbols, n), pointer<const std::int32_t>(table, kSymbols),
         pointer<std::int32_t>(sizes, n), pointer<std::uint8_t>(out, room), room, n},
        threads);
}

template <void (*Coder)(const EntropyDecode&, int)>
void entropy_decode(Address stream, Size nbytes, Address sizes, Address table, Address symbols, Address status, Size n,
                    int threads) {
  Coder({pointer<const std::uint8_t>(stream, nbytes), nbytes, pointer<const std::int32_t>(sizes, n),
         pointer<const std::int32_t>(table, kSymbols), pointer<std::uint8_t>(symbols, n),
         pointer<std::int32_t>(status, 1), n},
        threads);
}

void byte_counts_(Address symbols, Address counts, Size n, int threads) {
  byte_counts(pointer<const std::uint8_t>(symbols, n), pointer<std::int64_t>(counts, kSymbols), n, threads);
}

}  // namespace

void bind_entropy(nb::module_& m) {
  kernel(m, "byte_counts", &byte_counts_, "symbols"_a, "counts"_a);
  kernel(m, "rans_encode", &entropy_encode<rans_encode>, "symbols"_a, "table"_a, "sizes"_a, "out"_a, "room"_a);
  kernel(m, "rans_decode", &entropy_decode<rans_decode>, "stream"_a, "nbytes"_a, "sizes"_a, "table"_a, "symbols"_a,
         "status"_a);
  kernel(m, "prefix_encode", &entropy_encode<prefix_encode>, "symbols"_a, "table"_a, "sizes"_a, "out"_a, "room"_a);
  kernel(m, "prefix_decode", &entropy_decode<prefix_decode>, "stream"_a, "nbytes"_a, "sizes"_a, "table"_a, "symbols"_a,
         "status"_a);
}

}  // namespace gradwire::bindings
