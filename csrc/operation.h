// An operation as Python calls it: a function whose parameters say what it is given, in the order of its declaration in
// the family's ops.py.
//
//   T*             the address of a tensor's first element, which is not null where there are elements
//   Maybe<T>       the same, or null
//   Several<T>     the addresses of a list of tensors; their sizes, where they are given, are a std::vector<Size>
//   Column         a field of the payloads of all ranks: two numbers, the address and the bytes from a row to the next
//   numbers        as they are; a word is its place among those that are known
//
// After them come the addresses of the tables of the declaration, its symbols, n as the last, and where the work is shared
// out the number of threads.
// Each has a second form, NAME_each, that does the same to all rows of a table in one call.
// What a tensor is has been checked in Python, or read (tensors.h); here only what would make C++ itself undefined.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "dispatch.h"

#if !defined(GRADWIRE_SELFTEST)
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>
#endif

namespace gradwire::operations {

using Size = std::int64_t;

template <class T>
struct Maybe {
  T* data;
};

template <class T>
struct Several {
  std::vector<std::uintptr_t> addresses;

  std::size_t size() const { return addresses.size(); }
  T* at(std::size_t i) const { return reinterpret_cast<T*>(addresses[i]); }
};

struct Column {
  const std::uint8_t* data;
  Size stride;

  Rows rows(Size ranks) const { return {data, ranks, stride}; }
};

// The value behind an address, or another where there is none.
inline float value_or(Maybe<const float> address, float other) {
  return address.data == nullptr ? other : *address.data;
}

}  // namespace gradwire::operations

#if defined(GRADWIRE_SELFTEST)

#define GRADWIRE_OPERATION(name) [[maybe_unused]] static const auto unregistered_##name = &name;

#else

namespace gradwire::operations {

namespace nb = nanobind;

template <class... T>
struct Types {};

template <class... A, class... B>
Types<A..., B...> operator+(Types<A...>, Types<B...>);

// How a parameter is made of what Python gives: `Given`, from place `at` of a tuple on.
template <class P>
struct Take {
  using Given = Types<P>;
  template <std::size_t at, class All>
  static P from(const All& all, Size) {
    return std::get<at>(all);
  }
};

template <class T>
struct Take<T*> {
  using Given = Types<std::uintptr_t>;
  template <std::size_t at, class All>
  static T* from(const All& all, Size n) {
    const std::uintptr_t address = std::get<at>(all);
    if (n > 0 && address == 0) throw std::invalid_argument("an address must not be null where there are elements");
    return reinterpret_cast<T*>(address);
  }
};

template <class T>
struct Take<Maybe<T>> {
  using Given = Types<std::uintptr_t>;
  template <std::size_t at, class All>
  static Maybe<T> from(const All& all, Size) {
    return {reinterpret_cast<T*>(std::get<at>(all))};
  }
};

template <class T>
struct Take<Several<T>> {
  using Given = Types<std::vector<std::uintptr_t>>;
  template <std::size_t at, class All>
  static Several<T> from(const All& all, Size) {
    return {std::get<at>(all)};
  }
};

template <>
struct Take<Column> {
  using Given = Types<std::uintptr_t, Size>;
  template <std::size_t at, class All>
  static Column from(const All& all, Size) {
    return {reinterpret_cast<const std::uint8_t*>(std::get<at>(all)), std::get<at + 1>(all)};
  }
};

template <class... T>
constexpr std::size_t count_of(Types<T...>) {
  return sizeof...(T);
}

// Where what belongs to each parameter begins.
template <class... P>
constexpr std::array<std::size_t, sizeof...(P) + 1> places_of() {
  std::array<std::size_t, sizeof...(P) + 1> places{};
  const std::size_t counts[] = {count_of(typename Take<P>::Given{})...};
  for (std::size_t i = 0; i < sizeof...(P); ++i) places[i + 1] = places[i] + counts[i];
  return places;
}

template <class... P, class All, std::size_t... i>
void call(void (*function)(P...), const All& all, Size n, std::index_sequence<i...>) {
  constexpr auto places = places_of<P...>();
  function(Take<P>::template from<places[i]>(all, n)...);
}

template <class... P, class... Given>
void define(nb::module_& m, const char* name, void (*function)(P...), Types<Given...>) {
  const auto run = [function](Given... given) {
    using All = std::tuple<Given...>;
    constexpr std::size_t last = sizeof...(Given) - 1;
    constexpr bool threads = std::is_same_v<std::tuple_element_t<last, All>, int>;
    const All all(given...);
    const Size n = std::get<threads ? last - 1 : last>(all);
    if (n < 0) throw std::invalid_argument("a size must not be negative");
    call(function, all, n, std::index_sequence_for<P...>());
  };
  m.def(name, run, nb::call_guard<nb::gil_scoped_release>());
}

// What a row of a table adds to what is given to all of its rows: an offset to an address, a value of its own to 0.
inline std::uintptr_t added(std::uintptr_t given, Size own) { return given + std::uintptr_t(own); }
inline Size added(Size given, Size own) { return given + own; }
inline int added(int given, Size own) { return given + int(own); }
inline bool added(bool given, Size own) { return given || own != 0; }
inline double added(double given, Size own) {
  double value;
  std::memcpy(&value, &own, sizeof value);
  return own == 0 ? given : given + value;
}

template <class All, std::size_t... i>
All row_of(const All& given, const Size* own, std::index_sequence<i...>) {
  return All(added(std::get<i>(given), own[i])...);
}

// The same operation on many pieces in one call. A row of the table has a number for each of the arguments but the
// threads. A large piece is worked on by all threads; the others are handed out, so that they cost no region each.
template <class... P, class... Given>
void define_each(nb::module_& m, const char* name, void (*function)(P...), Types<Given...>) {
  using All = std::tuple<Given...>;
  constexpr std::size_t last = sizeof...(Given) - 1;
  constexpr bool shares = std::is_same_v<std::tuple_element_t<last, All>, int>;
  constexpr std::size_t columns = shares ? last : last + 1;
  const auto run = [function](std::uintptr_t table, Size rows, int threads, Given... given) {
    const auto each = [&](Size row, int helpers) {
      const Size* own = reinterpret_cast<const Size*>(table) + row * Size(columns);
      All all = [&] {
        if constexpr (shares) {
          // The threads are no column: a row of zeros and its own numbers.
          Size numbers[columns + 1] = {};
          std::copy_n(own, columns, numbers);
          return row_of(All(given...), numbers, std::index_sequence_for<Given...>());
        } else {
          return row_of(All(given...), own, std::index_sequence_for<Given...>());
        }
      }();
      if constexpr (shares) std::get<last>(all) = helpers;
      const Size n = std::get<columns - 1>(all);
      if (n < 0) throw std::invalid_argument("a size must not be negative");
      call(function, all, n, std::index_sequence_for<P...>());
    };
    const auto elements = [&](Size row) {
      return reinterpret_cast<const Size*>(table)[row * Size(columns) + Size(columns) - 1];
    };
    std::vector<Size> small;
    Size sum = 0;
    for (Size row = 0; row < rows; ++row) {
      if (shares && threads > 1 && elements(row) >= kAlone) {
        each(row, threads);
      } else {
        small.push_back(row), sum += elements(row);
      }
    }
    parallel_each(Size(small.size()), sum, threads, [&](Size i) { each(small[std::size_t(i)], 1); });
  };
  m.def(name, run, nb::call_guard<nb::gil_scoped_release>());
}

// Whether a table can say all that an operation is given.
template <class... Given>
constexpr bool in_a_table(Types<Given...>) {
  return sizeof...(Given) > 0 && !(std::is_same_v<Given, std::vector<std::uintptr_t>> || ...) &&
         !(std::is_same_v<Given, std::vector<Size>> || ...);
}

// The operations of all families: a list that is made while the library is loaded.
struct Operation {
  void (*define)(nb::module_& m);
  const Operation* next;

  static inline const Operation* first = nullptr;
  explicit Operation(void (*define)(nb::module_& m)) : define(define), next(first) { first = this; }
};

template <class... P>
void define_in(nb::module_& m, const char* name, void (*function)(P...)) {
  using Given = decltype((Types<>{} + ... + typename Take<P>::Given{}));
  define(m, name, function, Given{});
  if constexpr (in_a_table(Given{})) define_each(m, (std::string(name) + "_each").c_str(), function, Given{});
}

}  // namespace gradwire::operations

#define GRADWIRE_OPERATION(name)                                                       \
  static const ::gradwire::operations::Operation registered_##name(                    \
      [](::nanobind::module_& m) { ::gradwire::operations::define_in(m, #name, &name); });

#endif
