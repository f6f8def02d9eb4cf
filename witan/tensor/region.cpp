#include "witan/tensor/region.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

// The runs of `region`, by index, that may hold any of [begin, end).
std::pair<int64_t, int64_t> runs_within(const Region& region, int64_t begin, int64_t end) {
  if (region.elements() == 0 || end <= region.first() || begin >= region.end()) return {0, 0};
  if (region.runs() == 1) return {0, 1};
  const int64_t from = std::max<int64_t>(begin - region.first(), 0) / region.distance();
  const int64_t to = (std::min(end, region.end()) - region.first() - 1) / region.distance() + 1;
  return {from, std::min(to, region.runs())};
}

}  // namespace

Region::Region(int64_t first, int64_t length, int64_t runs, int64_t distance)
    : first_(first), length_(length), runs_(runs), distance_(distance) {
  require<ShapeError>(first >= 0 && length >= 0 && runs >= 0 && (runs <= 1 || distance >= length), "region: ", runs,
                      " runs of ", length, " elements, ", distance, " apart from ", first,
                      " on, do not describe a part of a tensor");
  if (runs_ > 1 && distance_ == length_) {
    length_ *= runs_;
    runs_ = 1;
  }
  if (elements() == 0) length_ = runs_ = 0;
  if (runs_ <= 1) distance_ = 0;
}

Region Region::divided(int64_t block, int64_t ranks, int64_t rank) const {
  require<ShapeError>(contiguous(), "region: ", *this, " is already split");
  require<ShapeError>(ranks >= 1 && rank >= 0 && rank < ranks, "region: there is no shard ", rank, " of ", ranks);
  if (elements() == 0) return *this;
  require<ShapeError>(block > 0 && length_ % block == 0 && block % ranks == 0, "region: every ", block, " of ", length_,
                      " elements cannot be split into ", ranks, " equal shards");
  const int64_t piece = block / ranks;
  return {first_ + rank * piece, piece, length_ / block, block};
}

std::vector<Region> Region::slice(int64_t begin, int64_t end) const {
  require<ShapeError>(begin >= 0 && begin <= end && end <= elements(), "region: no elements [", begin, ", ", end,
                      ") among ", elements());
  std::vector<Region> pieces;
  const auto add = [&](int64_t at, int64_t length, int64_t runs) {
    if (length > 0 && runs > 0) pieces.emplace_back(global(at), length, runs, distance_);
  };
  if (begin == end) return pieces;
  if (contiguous() || begin / length_ == (end - 1) / length_) {
    add(begin, end - begin, 1);
    return pieces;
  }
  const int64_t from = (begin + length_ - 1) / length_ * length_, to = end / length_ * length_;  // whole runs
  add(begin, from - begin, 1);
  add(from, length_, (to - from) / length_);
  add(to, end - to, 1);
  return pieces;
}

Region rows_of(const Shape& global, int64_t first_row, int64_t rows) {
  const int64_t all = global.dims() == 0 ? 1 : global[0];
  require<ShapeError>(first_row >= 0 && rows >= 0 && first_row <= all - rows, "region: rows ", first_row, " to ",
                      first_row + rows, " are not rows of the global ", global);
  const int64_t row = all == 0 ? 0 : global.elements() / all;
  return {first_row * row, rows * row};
}

std::ostream& operator<<(std::ostream& out, const Region& region) {
  if (region.contiguous()) return out << '[' << region.first() << ", " << region.end() << ')';
  return out << '(' << region.first() << " + i * " << region.distance() << ", " << region.length() << ") x "
             << region.runs();
}

Region divided_by(const Region& region, int64_t elements) {
  for (const int64_t size : {region.first(), region.length(), region.distance()})
    require<ShapeError>(size % elements == 0, "elements ", region, " are not whole groups of ", elements);
  return {region.first() / elements, region.length() / elements, region.runs(), region.distance() / elements};
}

void for_overlaps(const Region& a, const Region& b, const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  const auto [a_from, a_to] = runs_within(a, b.first(), b.end());
  for (int64_t i = a_from; i < a_to; ++i) {
    const int64_t a_first = a.first() + i * a.distance(), a_end = a_first + a.length();
    const auto [b_from, b_to] = runs_within(b, a_first, a_end);
    for (int64_t j = b_from; j < b_to; ++j) {
      const int64_t b_first = b.first() + j * b.distance();
      const int64_t begin = std::max(a_first, b_first), end = std::min(a_end, b_first + b.length());
      if (begin < end) visit(i * a.length() + begin - a_first, j * b.length() + begin - b_first, end - begin);
    }
  }
}

}  // namespace witan
