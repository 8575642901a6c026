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

namespace gradwire::operations {

using Size = std::int64_t;

template <class T>
struct Maybe {
  T* data;
};

template <class T>
struct Several {
  const std::vector<Size>& addresses;

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

// What Python gives. Of a list the elements are addresses or sizes.
enum class Kind : char { kAddress, kSize, kInt, kBool, kDouble, kList };

union Value {
  std::uintptr_t address;
  Size size;
  int number;
  bool flag;
  double real;
  const std::vector<Size>* list;
};

// How a parameter is made of what Python gives: values of `kinds`, the first of them at `from`. Of n elements.
template <class P>
struct Take;

template <Kind kind>
struct One {
  static constexpr std::array<Kind, 1> kinds{kind};
};

template <>
struct Take<Size> : One<Kind::kSize> {
  static Size of(const Value* from, Size) { return from->size; }
};

template <>
struct Take<int> : One<Kind::kInt> {
  static int of(const Value* from, Size) { return from->number; }
};

template <>
struct Take<bool> : One<Kind::kBool> {
  static bool of(const Value* from, Size) { return from->flag; }
};

template <>
struct Take<double> : One<Kind::kDouble> {
  static double of(const Value* from, Size) { return from->real; }
};

// Throws where it is null and there are elements.
void* address_of(const Value* from, Size n);

template <class T>
struct Take<T*> : One<Kind::kAddress> {
  static T* of(const Value* from, Size n) { return static_cast<T*>(address_of(from, n)); }
};

template <class T>
struct Take<Maybe<T>> : One<Kind::kAddress> {
  static Maybe<T> of(const Value* from, Size) { return {reinterpret_cast<T*>(from->address)}; }
};

template <class T>
struct Take<Several<T>> : One<Kind::kList> {
  static Several<T> of(const Value* from, Size) { return {*from->list}; }
};

template <>
struct Take<std::vector<Size>> : One<Kind::kList> {
  static const std::vector<Size>& of(const Value* from, Size) { return *from->list; }
};

template <>
struct Take<Column> {
  static constexpr std::array<Kind, 2> kinds{Kind::kAddress, Kind::kSize};
  static Column of(const Value* from, Size) {
    return {reinterpret_cast<const std::uint8_t*>(from[0].address), from[1].size};
  }
};

// All that the parameters of a function are given, and where what belongs to each of them begins.
template <class... P>
struct Given {
  static constexpr std::size_t count = (std::size_t{0} + ... + Take<P>::kinds.size());

  static constexpr std::array<Kind, count> make_kinds() {
    std::array<Kind, count> all{};
    std::size_t i = 0;
    const auto add = [&](const auto& some) {
      for (const Kind kind : some) all[i++] = kind;
    };
    (add(Take<P>::kinds), ...);
    return all;
  }

  static constexpr std::array<std::size_t, sizeof...(P)> make_places() {
    const std::size_t sizes[] = {Take<P>::kinds.size()...};
    std::array<std::size_t, sizeof...(P)> all{};
    for (std::size_t i = 1; i < sizeof...(P); ++i) all[i] = all[i - 1] + sizes[i - 1];
    return all;
  }

  static constexpr std::array<Kind, count> kinds = make_kinds();
  static constexpr std::array<std::size_t, sizeof...(P)> places = make_places();
  // The number of threads comes last, if there is one, and the number of elements before it.
  static constexpr bool shares = kinds[count - 1] == Kind::kInt;
  static_assert(kinds[count - 1 - shares] == Kind::kSize, "the last parameter, or the last but the threads, is n");
};

// An operation of any family, without its types: all are called by the same code, in calls.cc, because a function of
// its own for each signature takes seconds to compile. They are a list that is made while the library is loaded.
struct Operation {
  using Function = void (*)();

  const char* name;
  Function function;
  void (*call)(Function function, const Value* given, Size n);
  const Kind* kinds;
  std::size_t count;
  bool shares;  // has a number of threads
  const Operation* next;

  static inline const Operation* first = nullptr;

  template <class... P>
  Operation(const char* name, void (*function)(P...))
      : name(name),
        function(reinterpret_cast<Function>(function)),
        call(&call_of<P...>),
        kinds(Given<P...>::kinds.data()),
        count(Given<P...>::count),
        shares(Given<P...>::shares),
        next(first) {
    first = this;
  }

 private:
  template <class... P>
  static void call_of(Function function, const Value* given, Size n) {
    call_with<P...>(reinterpret_cast<void (*)(P...)>(function), given, n, std::index_sequence_for<P...>());
  }

  template <class... P, std::size_t... i>
  static void call_with(void (*function)(P...), const Value* given, Size n, std::index_sequence<i...>) {
    function(Take<P>::of(given + Given<P...>::places[i], n)...);
  }
};

}  // namespace gradwire::operations

#define GRADWIRE_OPERATION(name) static const ::gradwire::operations::Operation registered_##name(#name, &name);

#endif
