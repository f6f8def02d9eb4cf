// The shard of a global tensor on one rank, as positions in the flat global tensor: runs of equal length at equal
// distances, in order. Rows of dim 0 are one run; columns [c, c + n) of [R, C] are R runs of n, C apart; experts that
// are sharded inside, or the gate and up halves of one matrix, are runs too. Pure arithmetic; immutable.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <ostream>
#include <vector>

#include "witan/tensor/shape.h"

namespace witan {

class Region {
 public:
  Region() = default;  // empty
  // `runs` runs of `length` elements, the first at `first`, each `distance` after the previous one. Throws ShapeError
  // unless they are in order, do not overlap, and start at 0 or later.
  Region(int64_t first, int64_t length, int64_t runs = 1, int64_t distance = 0);

  int64_t first() const { return first_; }
  int64_t length() const { return length_; }
  int64_t runs() const { return runs_; }
  int64_t distance() const { return distance_; }  // 0 if there is one run
  int64_t elements() const { return length_ * runs_; }
  // One past the last element; first() if empty.
  int64_t end() const { return first_ + std::max<int64_t>(runs_ - 1, 0) * distance_ + length_; }
  bool contiguous() const { return runs_ <= 1; }

  // The position in the flat global tensor of element `local`, counted in this region's own order.
  int64_t global(int64_t local) const {
    return runs_ <= 1 ? first_ + local : first_ + local / length_ * distance_ + local % length_;
  }

  // The number of elements from `local` on, itself included, that are adjacent in the global tensor.
  int64_t adjacent(int64_t local) const { return runs_ <= 1 ? length_ - local : length_ - local % length_; }

  // The rank-th of `ranks` equal shards of every `block` elements of this region. Only a contiguous region can be
  // split. Throws ShapeError if it is not, or if block or shards do not divide evenly.
  Region divided(int64_t block, int64_t ranks, int64_t rank) const;

  // The elements [begin, end), in this region's own order, as at most three regions.
  std::vector<Region> slice(int64_t begin, int64_t end) const;

  bool operator==(const Region&) const = default;

 private:
  int64_t first_ = 0, length_ = 0, runs_ = 0, distance_ = 0;
};

// The rows [first_row, first_row + rows) of dim 0 of a global tensor; a scalar (no dims) is one row. Throws ShapeError
// for rows that do not exist.
Region rows_of(const Shape& global, int64_t first_row, int64_t rows);

// [first, end) of one run; (first + i * distance, length) x runs of several
std::ostream& operator<<(std::ostream& out, const Region& region);

// The region of a tensor that has one element for each `elements` adjacent ones of this region's. Throws ShapeError
// unless runs begin and end between them.
Region divided_by(const Region& region, int64_t elements);

// Calls visit(position in a, position in b, elements) for each stretch that is in both, in the order of the global
// tensor. Positions are in the regions' own orders. The time depends on the runs of `a` within b's ends, and on the
// stretches.
void for_overlaps(const Region& a, const Region& b, const std::function<void(int64_t, int64_t, int64_t)>& visit);

}  // namespace witan
