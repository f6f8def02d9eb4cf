// The part of a global tensor that one rank holds, as places in the flat global tensor: runs of equal length at equal
// distances, in order. Rows of dim 0 are one run; columns [c, c + n) of [R, C] are R runs of n, C apart; experts that
// are cut inside, or the gate and up halves of one matrix, are runs too. Pure arithmetic; immutable.
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
  Region() = default;  // of nothing
  // `runs` runs of `length` elements, the first at `first`, each `distance` after the one before. Throws ShapeError
  // unless they follow each other without overlap from 0 on.
  Region(int64_t first, int64_t length, int64_t runs = 1, int64_t distance = 0);

  int64_t first() const { return first_; }
  int64_t length() const { return length_; }
  int64_t runs() const { return runs_; }
  int64_t distance() const { return distance_; }  // 0 where there is one run
  int64_t elements() const { return length_ * runs_; }
  // Behind the last element; first() of nothing.
  int64_t end() const { return first_ + std::max<int64_t>(runs_ - 1, 0) * distance_ + length_; }
  bool contiguous() const { return runs_ <= 1; }

  // Where element `local`, counted in this part's own order, stands in the flat global tensor.
  int64_t global(int64_t local) const {
    return runs_ <= 1 ? first_ + local : first_ + local / length_ * distance_ + local % length_;
  }

  // Of every `block` elements of this part, the rank-th of `ranks` equal pieces. Only a contiguous part can be cut so.
  // Throws ShapeError when it is not, or block or pieces do not divide evenly.
  Region divided(int64_t block, int64_t ranks, int64_t rank) const;

  // Elements [begin, end) of this part's own order: at most three regions.
  std::vector<Region> slice(int64_t begin, int64_t end) const;

  bool operator==(const Region&) const = default;

 private:
  int64_t first_ = 0, length_ = 0, runs_ = 0, distance_ = 0;
};

// Rows [first_row, first_row + rows) of dim 0 of a global tensor; a scalar (no dims) is one row. Throws ShapeError for
// rows that it does not have.
Region rows_of(const Shape& global, int64_t first_row, int64_t rows);

// [first, end) of one run; (first + i * distance, length) x runs of several
std::ostream& operator<<(std::ostream& out, const Region& region);

// Calls visit(place in a, place in b, elements) for each stretch that lies in both, in the order of the global tensor.
// Places are in the parts' own orders. Takes time for the runs of `a` that lie within b's ends, and for the stretches.
void for_overlaps(const Region& a, const Region& b, const std::function<void(int64_t, int64_t, int64_t)>& visit);

}  // namespace witan
