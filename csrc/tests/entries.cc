#include "entries.h"

#include "exponents.h"
#include "marks.h"
#include "selftest.h"

namespace gradwire::selftest {

namespace {

void check_sparse(const std::string& target, bool levels) {
  static const float both[2] = {0.7f, -0.4f};
  compare(target, "sparse_add_decoded", [&](Buffers& x, std::int64_t n) {
    const Rows rows = x.rows(n);
    std::vector<SparsePart> parts;
    for (std::int64_t w = 0; w < kRanks; ++w) {
      // About as many in a segment as it has elements, so that most are read.
      const std::int32_t counts[2] = {std::int32_t(n / 2), std::int32_t(n)};
      std::uint8_t* const row = x.bytes.data() + w * rows.stride;
      std::memcpy(row, counts, n > kMarkSegment ? sizeof counts : n > 0 ? sizeof counts[0] : 0);
      parts.push_back({row, row, row, n, levels ? both : nullptr});
    }
    active().sparse_add_decoded({parts.data(), kRanks, x.a.data(), n, 0.3f}, 0, n);
  });
}

constexpr std::int64_t kSegments = 2;  // of the largest tensor here

std::int64_t segments_of(std::int64_t n) { return (n + kMarkSegment - 1) / kMarkSegment; }

// Marks with their counts, in the first two rows.
Marks marks_in(Buffers& x, std::int64_t n) {
  return {x.bytes.data(), reinterpret_cast<std::int32_t*>(x.bytes.data() + Buffers::row_bytes(n) / 4 * 4)};
}

void check_marks(const std::string& target) {
  const auto second = [](Buffers& x, std::int64_t n) {
    return Marks{x.bytes.data() + 2 * Buffers::row_bytes(n), reinterpret_cast<std::int32_t*>(x.c.data())};
  };
  check(target, "mark_beyond", &KernelTable::mark_beyond, [&](Buffers& x, std::int64_t n) {
    return MarkBeyond{marks_in(x, n), x.a.data(), 1.5f, 0.7f};
  });
  for (const float s : {2.5f, 1e-38f})
    check(target, "mark_drawn", &KernelTable::mark_drawn, [&](Buffers& x, std::int64_t n) {
      return MarkDrawn{marks_in(x, n), second(x, n), x.a.data(), s, 0x9876543210, 3};
    });
  check(target, "count_ones", &KernelTable::count_ones, [](Buffers& x, std::int64_t n) {
    return CountOnes{{x.bytes.data(), n / 9}, n, reinterpret_cast<std::int64_t*>(x.c.data())};
  });
  check(target, "spread_marked", &KernelTable::spread_marked, [](Buffers& x, std::int64_t) {
    return SpreadMarked{x.a.data(), x.bytes.data(), x.c.data(), x.b.data()};
  });
  check(target, "tail_moments", &KernelTable::tail_moments, [](Buffers& x, std::int64_t) {
    return TailMoments{x.a.data(), x.c.data(), 0.1f, 2.5f, 0.5f};
  });
  for (const bool clears : {false, true})
    compare(target, "take_marked", [&](Buffers& x, std::int64_t n) {
      std::int32_t counts[kSegments] = {};
      const Marks marks = {x.bytes.data(), counts};
      active().mark_beyond({marks, x.a.data(), 1.5f, 0.7f}, 0, n);
      const auto starts = starts_of(counts, segments_of(n), n);
      const auto indices = reinterpret_cast<std::uint16_t*>(x.bytes.data() + 2 * Buffers::row_bytes(n));
      active().take_marked({x.a.data(), marks.bitmap, starts.data(), x.c.data(), indices, clears ? x.a.data() : nullptr},
                           0, n);
    });
}

void check_taking(const std::string& target) {
  const auto list = [](Buffers& x, std::vector<float>& values, std::int64_t row, std::int64_t n) {
    std::uint8_t* const at = x.bytes.data() + row * Buffers::row_bytes(n);
    return EntryList{values.data(), reinterpret_cast<std::uint16_t*>(at + 8), reinterpret_cast<std::int32_t*>(at), n / 2};
  };
  compare(target, "take_beyond", [&](Buffers& x, std::int64_t n) {
    take_beyond({x.a.data(), 1.5f, 0.7f, list(x, x.c, 0, n)}, n, 1);
  });
  compare(target, "take_drawn", [&](Buffers& x, std::int64_t n) {
    take_drawn({x.a.data(), 2.5f, 0x9876543210, 3, list(x, x.b, 0, n), list(x, x.c, 1, n)}, n, 1);
  });
}

// Codes of powers of two, and of three levels, behind the marks of whole rows that are random.
void check_bitmaps(const std::string& target) {
  compare(target, "exponent_encode", [](Buffers& x, std::int64_t n) {
    std::int32_t counts[kSegments] = {};
    active().mark_beyond({{x.bytes.data(), counts}, x.a.data(), 1.5f, 0.7f}, 0, n);
    const std::int64_t k = counts[0] + counts[1];
    exponent_encode({x.a.data(), x.bytes.data(), counts, x.bytes.data() + Buffers::row_bytes(n), k, 130}, n, 1);
  });
  for (const std::int64_t share : {1, 3, 8})
    compare(target, "exponent_add_decoded", [&](Buffers& x, std::int64_t n) {
      // Rows of n bytes and less: some end within their codes, or within their marks.
      const std::int32_t used[kRanks] = {std::int32_t(n), std::int32_t(n / share), std::int32_t(n / 9)};
      const std::int32_t tops[kRanks] = {130, 3, 255};
      const auto column = [](const std::int32_t* from) {
        return Rows{reinterpret_cast<const std::uint8_t*>(from), kRanks, sizeof *from};
      };
      exponent_add_decoded({x.rows(n), n, column(used), column(tops), x.a.data(), 0.3f}, n, 1);
    });
}

void check_tiles(const std::string& target, std::int64_t height, std::int64_t width) {
  constexpr std::int64_t kWaves = 3;
  std::vector<float> left(std::size_t(kWaves * height)), wide(std::size_t(kWaves * width));
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = float(i % 7) / 3 - 1.0f;
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = float(i % 5) / 9 + 0.1f;
  compare(target, "add_waves", [&](Buffers& x, std::int64_t n) {
    if (n < height * (width + 3)) return;
    const float* const waves[kWaves] = {wide.data(), wide.data() + width, wide.data() + 2 * width};
    active().add_waves({left.data(), waves, kWaves, height, width, x.a.data(), width + 3, 0.3f}, 0, height);
  });
}

}  // namespace

void check_entries(const std::string& target) {
  for (const bool levels : {false, true}) check_sparse(target, levels);
  check_marks(target);
  check_taking(target);
  check_bitmaps(target);
  for (const std::int64_t width : {1, 16, 17, 64}) check_tiles(target, 5, width);
}

}  // namespace gradwire::selftest
