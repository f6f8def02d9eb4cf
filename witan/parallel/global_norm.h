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
  // overwritten by the next call. Every owner sums its part; a call of all ranks of the shard, tensor, expert and
  // expert tensor axes.
  const Tensor& compute(Stream& stream, Of what);

 private:
  // Parameters that the same ranks divide: their rows of sums lie by rank of the group, `rows[r]` from `begin[r]` on.
  struct Family {
    Group& group;
    int parts;  // of a parameter that is not divided among owners: the group has one after the other for each owner
    std::vector<size_t> parameters = {};
    std::vector<int64_t> begin = {}, rows = {};
  };
  std::vector<Family> families_of(const Groups& groups);
  int64_t rows_of(size_t parameter, int owner) const;
  int64_t table_words() const;
  std::vector<int64_t> summation_order() const;
  std::vector<kernels::SquareSumsItem> items_of(Of what) const;

  const Ownership& ownership_;
  int64_t rows_ = 0;  // of sums
  std::vector<Family> families_;
  Tensor sums_;   // [rows, 2] float64
  Tensor order_;  // [rows] int64: in which they are added
  Tensor total_;  // [2] float64
  kernels::DeviceTable gradients_, values_;
};

}  // namespace witan
