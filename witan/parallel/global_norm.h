// The norm of all gradients or values of the model, with every parameter counted once, whether replicated or sharded.
//
// Sums of squares of 64Ki-element chunks are added in the order of parameters, experts and chunks: the same bits on
// every rank, and in every layout in which the gradients are the same. Stages of a pipeline exchange the sums of all.
// Of gradients that keep sums of blocks (Leaf::gradient_block_sums) nothing is read: an expert's blocks are added to
// as many rows as it has chunks, and the norm's last bits, and on a GPU its last eight digits, are those of these sums.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/device_table.h"
#include "witan/optim/clip.h"
#include "witan/parallel/sharding/shard_plan.h"

namespace witan {

// Parameters that are sharded over the same axes: the sharding axes alone (`whole`), those and the tensor axis, or, for
// experts, the expert and expert_tensor axes too.
enum class NormFamily : uint8_t { whole, tensor_split, experts };
inline constexpr size_t kNormFamilies = 3;

// The number of sums that a rank has for a parameter, by owner: equal on all ranks that shard it, so that some may sum
// nothing.
struct NormRows {
  NormFamily family;
  int chunk;  // of the layers of its stage of a pipeline
  std::vector<int64_t> by_owner;
  bool frozen;  // it has values to sum, and no gradients
  int unit;     // of the model
};
// Of all parameters of a stage, in the order of the model.
std::vector<NormRows> norm_rows(const ShardPlan& shard_plan, const Layout& layout);

class GlobalNorm {
 public:
  enum class Of : uint8_t { gradients, values };

  // `stages`: the rows of every stage of the pipeline, in their order; empty: there is one. ShardPlan and groups must
  // outlive it.
  GlobalNorm(Stream& stream, const ShardPlan& shard_plan, const Groups& groups,
             std::vector<std::vector<NormRows>> stages = {});

  // total [2] float64 on the device: the sum of squares and the number of zeros, for clip() and read_norm();
  // overwritten by the next call. Every owner sums its part; a call of all owners, and of all ranks of the tensor,
  // expert, expert tensor and pipeline axes.
  const Tensor& compute(Stream& stream, Of what);

  // After compute(Of::gradients), until the next call: the sum of squares of the gradients of each unit of the model,
  // by ParameterSpec::unit, [units]. Every rank has all sums already: nobody communicates. Waits for the stream; zeros
  // on the meta device.
  std::vector<double> square_sums_of_units(Stream& stream) const;

 private:
  struct Family {
    Group& group;
    int parts;  // of a parameter that is not divided among owners: the group has one after the other for each owner
  };
  // Rows of the gradients that stand side by side in their order, [begin, begin + count), and are of one unit.
  struct UnitRows {
    int unit;
    int64_t begin, count;
  };
  // Rows in the order of their sum. On the meta device, where nobody reads them, only how many: there may be millions.
  struct Order {
    bool keeps;
    int64_t count = 0;
    std::vector<int64_t> rows = {};
    void add(int64_t first, int64_t more);
  };
  // Where rows lie: one family after the other, each by rank of its group, [ranks + 1].
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
  // What compute() sums: tensors, and blocks of gradients that were summed when they were written.
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
  Tensor order_of_gradients_, all_in_order_;  // [rows] int64: in which they are added
  std::vector<UnitRows> unit_rows_;           // of order_of_gradients_
  Tensor total_;                              // [2] float64
  Tensor unit_totals_;                        // [unit_rows_, 2] float64
  kernels::DeviceTable gradients_, values_, blocks_;
};

}  // namespace witan
