// The norm of the whole model's gradients or values, every parameter counted once, however it is replicated or divided.
//
// Sums of squares of 64Ki-element chunks are added in the order of parameters, experts and chunks: the same bits on
// every rank, and in every layout in which the gradients are the same.
#pragma once

#include <vector>

#include "witan/kernels/device_table.h"
#include "witan/optim/clip.h"
#include "witan/parallel/ownership.h"

namespace witan {

class GlobalNorm {
 public:
  enum class Of : uint8_t { gradients, values };

  // Ownership and groups must outlive it.
  GlobalNorm(Stream& stream, const Ownership& ownership, const Groups& groups);

  // total [2] float64 on the device: the sum of squares and the number of zeros, for clip() and read_norm();
  // overwritten by the next call. Every owner sums its part; a call of all ranks of the shard and expert axes.
  const Tensor& compute(Stream& stream, Of what);

 private:
  // Parameters of one kind: their rows of sums lie by rank of the group that divides them, `rows[r]` from `begin[r]`
  // on.
  struct Family {
    bool experts;
    Group& group;
    int expert_ranks;  // of which the group has one after the other for each owner
    std::vector<int64_t> begin, rows;
  };
  Family family_of(bool experts, Group& group, int expert_ranks, int64_t& rows) const;
  int64_t rows_of(size_t parameter, int owner) const;
  int64_t table_words() const;
  std::vector<int64_t> summation_order() const;
  std::vector<kernels::SquareSumsItem> items_of(Of what) const;

  const Ownership& ownership_;
  int64_t rows_ = 0;  // of sums
  Family dense_, experts_;
  Tensor sums_;   // [rows, 2] float64
  Tensor order_;  // [rows] int64: in which they are added
  Tensor total_;  // [2] float64
  kernels::DeviceTable gradients_, values_;
};

}  // namespace witan
