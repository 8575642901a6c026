// Streams of bits: bit i of a stream is bit i % 8 of its byte i / 8. Little-endian hosts only, as everywhere here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace gradwire {

// Appends to zeroed or fresh memory; finish() writes the last bits.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* out) : out_(out) {}

  // The low `count` bits of `value`, which has no others; count <= 32.
  void put(std::uint32_t value, int count) {
    word_ |= std::uint64_t(value) << filled_;
    filled_ += count;
    if (filled_ < 32) return;
    std::memcpy(out_, &word_, 4);
    out_ += 4, word_ >>= 32, filled_ -= 32;
  }

  void finish() { std::memcpy(out_, &word_, std::size_t((filled_ + 7) / 8)); }

 private:
  std::uint8_t* out_;
  std::uint64_t word_ = 0;
  int filled_ = 0;
};

// Bytes that may come from anybody: whatever lies beyond their end is 0.
struct Bytes {
  const std::uint8_t* data;
  std::int64_t size;

  Bytes from(std::int64_t start) const {
    const std::int64_t skipped = std::min(start, size);
    return {data + skipped, size - skipped};
  }

  Bytes first(std::int64_t count) const { return {data, std::min(count, size)}; }

  std::uint64_t word(std::int64_t byte) const {
    std::uint64_t word = 0;
    if (byte + 8 <= size)
      std::memcpy(&word, data + byte, 8);
    else if (byte < size)
      std::memcpy(&word, data + byte, std::size_t(size - byte));
    return word;
  }

  // count <= 32
  std::uint32_t bits(std::int64_t at, int count) const {
    return std::uint32_t(word(at / 8) >> at % 8 & ((std::uint64_t(1) << count) - 1));
  }
};

// The bits that are set, in order.
class Ones {
 public:
  explicit Ones(Bytes bytes) : bytes_(bytes), word_(bytes.word(0)) {}

  // The place of the next one, or -1.
  std::int64_t next() {
    while (word_ == 0) {
      base_ += 8;
      if (base_ >= bytes_.size) return -1;
      word_ = bytes_.word(base_);
    }
    const std::int64_t place = 8 * base_ + __builtin_ctzll(word_);
    word_ &= word_ - 1;
    return place;
  }

 private:
  Bytes bytes_;
  std::int64_t base_ = 0;
  std::uint64_t word_;
};

}  // namespace gradwire
