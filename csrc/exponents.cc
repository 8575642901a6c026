#include "exponents.h"

#include <cstring>

#include "dispatch.h"
#include "marks.h"

namespace gradwire {

namespace {

std::int32_t number_at(const Rows& rows, std::int64_t rank) {
  std::int32_t number;
  std::memcpy(&number, rows.data + rank * rows.stride, sizeof number);
  return number;
}

// One rank's payload, and how many codes there are before each segment.
struct Sent {
  ExponentRank rank;
  std::vector<std::int64_t> starts;
};

// What each code adds: of 255 no number.
void fill_addends(ExponentRank& rank, int top, float scale) {
  for (int code = 0; code < 16; ++code) {
    const std::uint32_t exponent = std::uint32_t(std::max(top - code % 8, 0));
    const std::uint32_t bits = (top == 255 ? 0x7fc00000 : exponent << 23) | (code >= 8 ? 0x80000000 : 0);
    float power;
    std::memcpy(&power, &bits, sizeof power);
    rank.addends[code] = power * scale;
  }
}

Sent sent_by(const ExponentSum& e, std::int64_t rank, std::int64_t n, int threads) {
  const std::uint8_t* const data = e.streams.data + rank * e.streams.stride;
  const std::int64_t used = std::clamp<std::int64_t>(number_at(e.used, rank), 0, e.length);
  const std::int64_t middle = std::min((n + 7) / 8, used);
  Sent s = {{{data, middle}, {data + middle, used - middle}, 0, {}}, {}};
  fill_addends(s.rank, std::clamp(number_at(e.heads, rank), 0, 255), e.scale);
  std::vector<std::int64_t> counts(std::size_t(mark_segments(n)));
  run(&KernelTable::count_ones, {s.rank.bitmap, n, counts.data()}, n, kMarkSegment, threads);
  s.starts = starts_of(counts.data(), std::int64_t(counts.size()), n);
  return s;
}

}  // namespace

void exponent_encode(const ExponentEncode& e, std::int64_t n, int threads) {
  const auto starts = starts_of(e.counts, mark_segments(n), e.k);
  std::vector<std::uint8_t> edges(starts.size() - 1);
  run(&KernelTable::exponent_codes, {e.x, e.bitmap, starts.data(), e.codes, edges.data(), e.top}, n, kMarkSegment,
      threads);
  join_edges(e.codes, starts, edges, 4);
}

void exponent_add_decoded(const ExponentSum& e, std::int64_t n, int threads) {
  std::vector<Sent> ranks;
  for (std::int64_t w = 0; w < e.streams.count; ++w) ranks.push_back(sent_by(e, w, n, threads));
  count_call();
  parallel_for(n, kMarkSegment, threads, [&](std::int64_t begin, std::int64_t end, int) {
    std::vector<ExponentRank> here;
    for (const Sent& s : ranks) {
      here.push_back(s.rank);
      here.back().place = s.starts[std::size_t(begin / kMarkSegment)];
    }
    active().exponent_add_decoded({here.data(), e.streams.count, e.out, n}, begin, end);
  });
}

}  // namespace gradwire
