// The norm of all gradients or values of the model. Every parameter counts once, whether it is replicated or sharded.
//
// Sums of squares of 64Ki-element chunks are added in the order of parameters, experts and chunks: this gives the same
// bits on every rank, and in every layout with the same gradients. Pipeline stages exchange all sums. Gradients that
// keep block sums (Leaf::gradient_block_sums) are not read: an expert's blocks are added to as many rows as it has
// chunks, so that the norm's last bits, and on a GPU its last eight digits, are those of the block sums.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/device_table.h"
#include "witan/optim/clip.h"
#include "witan/parallel/sharding/shard_plan.h"

namespace witan {

// Families of parameters that are sharded over the same axes: over the sharding axes alone (`whole`), also over the
// tensor axis, or, for experts, also over the expert and expert_tensor axes.
enum class NormFamily : uint8_t { whole, tensor_split, experts };
inline constexpr size_t kNormFamilies = 3;

// The number of sums that each owner has for a parameter. It is the same on all ranks that shard the parameter, so that
// some rows may sum nothing.
struct NormRows {
  NormFamily family;
  int chunk;  // chunk of layers within the pipeline stage
  std::vector<int64_t> by_owner;
  bool frozen;  // it has values but no gradients to sum
  bool coded;   // it is kept as codes, and is no part of the norm of values
  int unit;     // unit of the model
};
// The rows of all parameters of a stage, in the model's order.
std::vector<NormRows> norm_rows(const ShardPlan& shard_plan, const Layout& layout);

class GlobalNorm {
 public:
  enum class Of : uint8_t { gradients, values };

  // `stages`: the rows of every pipeline stage, in order; empty: there is only one. ShardPlan and groups must outlive
  // this.
  GlobalNorm(Stream& stream, const ShardPlan& shard_plan, const Groups& groups,
             std::vector<std::vector<NormRows>> stages = {});

  // Returns total [2] float64 on the device: the sum of squares and the number of zeros, for clip() and read_norm();
  // the next call overwrites it. Every owner sums its part; called by all owners, and by all ranks of the tensor,
  // expert, expert tensor and pipeline axes.
  const Tensor& compute(Stream& stream, Of what);

  // The sums of squares of each unit's gradients by ParameterSpec::unit, [units], after compute(Of::gradients) and
  // until the next call. Every rank already has all sums, so that nothing is communicated. Waits for the stream; zeros
  // on the meta device.
  std::vector<double> square_sums_of_units(Stream& stream) const;

 private:
  struct Family {
    Group& group;
    int parts;  // parts of a parameter that is not sharded by owner: the group has one after the other for each owner
  };
  // Consecutive rows of gradients [begin, begin + count) of the same unit.
  struct UnitRows {
    int unit;
    int64_t begin, count;
  };
  // Rows in summation order. On the meta device, where they are not read, only their number: there may be millions.
  struct Order {
    bool keeps;
    int64_t count = 0;
    std::vector<int64_t> rows = {};
    void add(int64_t first, int64_t more);
  };
  // The placement of rows: one family after the other, each by rank of its group, [ranks + 1].
  struct Stage {
    std::vector<NormRows> parameters;
    std::array<std::vector<int64_t>, kNormFamilies> begins;
    int64_t end() const { return begins.back().back(); }
  };
  std::vector<Stage> place(std::vector<std::vector<NormRows>> stages) const;
  const Stage& own() const { return stages_[static_cast<size_t>(pipeline_.rank())]; }
  int64_t table_words(Of what) const;
  Tensor summation_order(Stream& stream, Of what, std::vector<UnitRows>& units) const;
  void append_rows(Of what, int chunk, const Stage& stage, Stage& next, Order& order,
                   std::vector<UnitRows>& units) const;
  // The inputs of compute(): tensors, and block sums of gradients that were written with them.
  struct Items {
    std::vector<kernels::SquareSumsItem> tensors;
    std::vector<kernels::AddBlocksItem> blocks;
  };
  Items items_of(Of what, Of tensors) const;
  void gather_sums(Stream& stream) const;

  const ShardPlan& shard_plan_;
  std::array<Family, kNormFamilies> families_;
  Group& pipeline_;
  std::vector<Stage> stages_;
  Tensor sums_;                               // [rows, 2] float64
  Tensor order_of_gradients_, all_in_order_;  // [rows] int64: summation orders
  std::vector<UnitRows> unit_rows_;           // of order_of_gradients_
  Tensor total_;                              // [2] float64
  Tensor unit_totals_;                        // [unit_rows_, 2] float64
  kernels::DeviceTable gradients_, values_, blocks_;
};

}  // namespace witan
