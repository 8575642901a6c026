// Golomb-Rice codes of increasing places: the low bits of the gaps in one stream, their quotients in unary in another.
#pragma once

#include "bits.h"

namespace gradwire {

// The number of low bits for k of n places.
inline int rice_shift(std::int64_t n, std::int64_t k) {
  const std::int64_t mean = k > 0 ? (n - k) / k : 0;
  return mean > 0 ? 63 - __builtin_clzll(std::uint64_t(mean)) : 0;
}

// `high` is zeroed; both streams have room.
class RiceWriter {
 public:
  RiceWriter(int shift, std::uint8_t* low, std::uint8_t* high) : shift_(shift), low_(low), high_(high) {}

  void put(std::int64_t place) {
    const std::uint64_t gap = std::uint64_t(place - last_ - 1);
    low_.put(std::uint32_t(gap & ((std::uint64_t(1) << shift_) - 1)), shift_);
    end_ += std::int64_t(gap >> shift_);
    high_[end_ / 8] |= std::uint8_t(1u << end_ % 8);
    ++end_, last_ = place;
  }

  void finish() { low_.finish(); }

 private:
  int shift_;
  BitWriter low_;
  std::uint8_t* high_;
  std::int64_t end_ = 0, last_ = -1;
};

class RiceReader {
 public:
  RiceReader(int shift, Bytes low, Bytes high, std::int64_t n) : shift_(shift), n_(n), low_(low), ones_(high) {}

  // The next place, or -1 where the codes end or it would not be below n.
  std::int64_t next() {
    const std::int64_t one = ones_.next();
    if (one < 0) return -1;
    const std::int64_t quotient = one - end_;
    if (quotient > n_ >> shift_) return -1;
    place_ += (quotient << shift_) + low_.bits(read_, shift_) + 1;
    end_ = one + 1, read_ += shift_;
    return place_ < n_ ? place_ : -1;
  }

 private:
  int shift_;
  std::int64_t n_;
  Bytes low_;
  Ones ones_;
  std::int64_t end_ = 0, read_ = 0, place_ = -1;
};

}  // namespace gradwire
