// Optimizers update the shards they are handed (by parallel/sharding/shard_plan).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/param_groups.h"
#include "witan/optim/state_spec.h"
#include "witan/optim/step_state.h"

namespace witan {

class Group;

// A shard that this rank updates: elements [first, first + elements) of the flat local part of a
// parameter. An optimizer of whole matrices (ShardBy::matrices) is given whole parameters, and whole experts of a
// stack.
struct ParameterShard {
  Parameter* parameter;
  int64_t first, elements;
  // Of a matrix that tensor-parallel ranks shard (ParameterSpec::tensor_split): the ranks that update its other pieces,
  // all of which own them in the same order, so that they may communicate over it. Null where the matrix is whole here.
  Group* pieces = nullptr;
};

// A piece of optimizer state as checkpoints see it: a part of a global tensor.
struct OptimizerTensor {
  std::string name;                // "adam.m/layers.0.attention.q_proj.weight"
  Tensor tensor;                   // flat; of a master: the value itself, which it is rounded to
  const ParameterSpec& parameter;  // of the global tensor's shape, and held by ranks as it is (ShardState::global)
  Region region;                   // where the elements of the tensor stand in it
  Tensor remainder = {};           // of a master: what it has beyond (tensor/host.h)
};

class Optimizer {
 public:
  Optimizer() = default;
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of every shard from its parameter's gradient, which must be bound and written. Nothing changes when the
  // step is skipped.
  virtual void update(Stream& stream, const StepState& step) = 0;

  // Everything but the values that a resumed run needs, in a fixed order: of each shard the float32 master
  // ("master/NAME", of values of 16 bits alone), then the algorithm's own state.
  virtual void visit(const std::function<void(const OptimizerTensor&)>& visitor) const = 0;

  // The shards, for who changes weights beside the gradient, with the remainders of their masters (tensor/host.h;
  // undefined where values are as wide as their sums).
  virtual void visit_shards(
      const std::function<void(const ParameterShard&, const Tensor& remainder)>& visitor) const = 0;
};

// What an optimizer of this name is, before there is one: planning and sharding ask.
struct OptimizerTraits {
  const char* name;
  ShardBy needs;
  // The tensors that it keeps of each parameter. State of other shapes than the parameter's needs ShardBy::matrices.
  std::vector<OptimizerStateSpec> (*state)(const OptimizerSettings& settings);
  // What updating a matrix takes, in bytes that a float32 update reads and writes: owners are balanced by it.
  double (*cost)(const OptimizerSettings& settings, int64_t rows, int64_t columns);
  std::unique_ptr<Optimizer> (*make)(const ParamGroup& group, size_t index, Stream& stream,
                                     std::vector<ParameterShard> parameter_shards);
  // It is meant for matrices and experts alone. Named in [optimizer] it leaves all other kinds of parameters to AdamW
  // (param_groups.h).
  bool of_inner_matrices = false;
  // Its calls differ from step to step, as the host decides: steps are not recorded in a CUDA graph.
  bool eager = false;
};
const OptimizerTraits& optimizer_traits(const std::string& name);  // throws ConfigError
std::vector<std::string> optimizer_names();

// The one that config.optimizer names, or with parameter groups one for each group that owns something here.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, Stream& stream,
                                          std::vector<ParameterShard> parameter_shards);

}  // namespace witan
