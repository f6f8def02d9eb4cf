// Rows grouped by expert inside a pool of fixed capacity [capacity, D]. Only the device knows where the groups are: the
// host knows the capacity, a bound, so that no step waits for a count. Rows outside the groups are undefined.
#pragma once

#include "witan/tensor/tensor.h"

namespace witan {

struct RowGroups {
  Tensor begin;  // [E] int64: first row of each expert's group
  Tensor count;  // [E] int64: rows in each group; groups do not overlap, and begin[e] + count[e] <= capacity
  // [R, E] int64: the rows of each group that came from each of R ranks. Undefined if all are this rank's own.
  Tensor source_begin = {}, source_count = {};
  // Rows in all groups together if the load is balanced; -1: every row of the pool. Only the device knows the actual
  // counts: costs are computed from this number, and it changes no result.
  int64_t expected_rows = -1;

  int64_t experts() const { return count.size(0); }
  int64_t sources() const { return source_count.defined() ? source_count.size(0) : 1; }
  // The rows that came from one rank, in that rank's order within each expert.
  RowGroups of_source(int64_t rank) const {
    if (!source_count.defined()) return *this;
    const auto row = [&](const Tensor& of) { return of.narrow(0, rank, 1).reshape({experts()}); };
    return {row(source_begin), row(source_count), {}, {}, expected_rows < 0 ? -1 : expected_rows / sources()};
  }
  // The groups of `number` experts from `first` on, without their sources. The expected rows of adjacent parts add up
  // to those of all.
  RowGroups of_experts(int64_t first, int64_t number) const {
    const auto share = [&](int64_t end) { return expected_rows * end / experts(); };
    return {begin.narrow(0, first, number),
            count.narrow(0, first, number),
            {},
            {},
            expected_rows < 0 ? -1 : share(first + number) - share(first)};
  }
  int64_t rows_of(int64_t capacity) const { return expected_rows < 0 ? capacity : expected_rows; }
};

}  // namespace witan
