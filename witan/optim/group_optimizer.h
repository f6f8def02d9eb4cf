// Base class of the optimizers of one parameter group. It holds the shards with their masters and state, and shows them
// to checkpoints.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "witan/optim/optimizer.h"

namespace witan {

class GroupOptimizer : public Optimizer {
 public:
  void update(Stream& stream, const StepState& step) final {
    update_number_ = step.update();
    update_shards(stream, step.tensor(), rate_);
  }
  void visit(const std::function<void(const OptimizerTensor&)>& visitor) const final;
  void visit_shards(const std::function<void(const ParameterShard&, const Tensor&)>& visitor) const final {
    for (const Shard& shard : shards_) visitor(shard.part, shard.remainder);
  }

 protected:
  // A tensor that the traits describe; undefined if it has no elements.
  struct State {
    std::string prefix;  // "adam.m"
    Tensor tensor;
    ShardState place;
  };
  // A shard's tensors, all of them flat.
  struct Shard {
    ParameterShard part;
    Tensor remainder;          // of 16-bit values: the float32 masters' remaining bits
    std::vector<State> state;  // in the order of the traits
    double weight_decay = 0;

    Tensor value() const { return part.parameter->value_shard(part.first, part.elements); }
    Tensor gradient() const { return part.parameter->gradient_shard(part.first, part.elements); }
  };

  const std::vector<Shard>& shards() const { return shards_; }
  // The number of this update, from 1 on, on the host: a step that depends on it cannot be replayed as a graph
  // (OptimizerTraits::eager).
  int64_t update_number() const { return update_number_; }

  // `index`: the group's, in ParamGroups. State starts as zeros, a tensor for each shard and state of the optimizer's
  // traits. Throws ShapeError for elements that a parameter does not have, and for matrices that a shard cuts.
  GroupOptimizer(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  // `rate`: the index of the group's learning rate in `step`.
  virtual void update_shards(Stream& stream, const Tensor& step, int64_t rate) = 0;

  std::vector<Shard> shards_;
  int64_t rate_, update_number_ = 0;
};

// OptimizerTraits::make for a class whose constructor takes `first` before the common arguments.
template <class Made, auto... first>
std::unique_ptr<Optimizer> make_group_optimizer(const ParamGroup& group, size_t index, Stream& stream,
                                                std::vector<ParameterShard> parameter_shards) {
  return std::make_unique<Made>(first..., group, index, stream, std::move(parameter_shards));
}

// All optimizers; optimizer_traits() finds them by name.
extern const OptimizerTraits kAdamWTraits, kSgdTraits, kLionTraits, kAdEMAMixTraits;  // elementwise.cpp
extern const OptimizerTraits kMuonTraits, kNorMuonTraits;                             // muon.cpp
extern const OptimizerTraits kShampooTraits;                                          // shampoo.cpp
extern const OptimizerTraits kSoapTraits;                                             // soap.cpp

}  // namespace witan
