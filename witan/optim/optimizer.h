// Optimizers update the parameter shards that this rank owns (parallel/sharding/shard_plan).
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

// A shard that this rank updates: elements [first, first + elements) of the flat local part of a parameter. Optimizers
// of whole matrices (ShardBy::matrices) get whole parameters, and whole experts of a stack.
struct ParameterShard {
  Parameter* parameter;
  int64_t first, elements;
  // The ranks that update the other pieces of a matrix that tensor-parallel ranks shard (ParameterSpec::tensor_split).
  // All of them own their pieces in the same order, so that they may communicate. Null if the matrix is whole here.
  Group* pieces = nullptr;
};

// A piece of optimizer state as checkpoints see it: a part of a global tensor.
struct OptimizerTensor {
  std::string name;                // "adam.m/layers.0.attention.q_proj.weight"
  Tensor tensor;                   // flat; for a master, the value to which it is rounded
  const ParameterSpec& parameter;  // describes the global tensor and how ranks hold it (ShardState::global)
  Region region;                   // the elements of the tensor in the global tensor
  Tensor remainder = {};           // for a master, its remaining bits (tensor/host.h)
};

class Optimizer {
 public:
  Optimizer() = default;
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every shard from its parameter's gradient, which must be bound and written. A skipped step changes nothing.
  virtual void update(Stream& stream, const StepState& step) = 0;

  // Visits everything besides the values that a resumed run needs, in a fixed order: for each shard the float32 master
  // of 16-bit values ("master/NAME"), then the algorithm's state.
  virtual void visit(const std::function<void(const OptimizerTensor&)>& visitor) const = 0;

  // Visits the shards with the remainders of their masters (tensor/host.h; undefined for values without a master), for
  // changes of weights besides the update.
  virtual void visit_shards(
      const std::function<void(const ParameterShard&, const Tensor& remainder)>& visitor) const = 0;
};

// The properties of an optimizer that planning and sharding need before it is made.
struct OptimizerTraits {
  const char* name;
  ShardBy needs;
  // The tensors that it keeps for each parameter. State of other shapes than the parameter's needs ShardBy::matrices.
  std::vector<OptimizerStateSpec> (*state)(const OptimizerSettings& settings);
  // The cost of updating a matrix, in bytes that a float32 update reads and writes, by which owners are balanced.
  double (*cost)(const OptimizerSettings& settings, int64_t rows, int64_t columns);
  std::unique_ptr<Optimizer> (*make)(const ParamGroup& group, size_t index, Stream& stream,
                                     std::vector<ParameterShard> parameter_shards);
  // The optimizer is meant for matrices and experts. If [optimizer] names it, AdamW updates all other kinds of
  // parameters (param_groups.h).
  bool of_inner_matrices = false;
  // The host decides each step's calls, so that steps are not recorded in a CUDA graph.
  bool eager = false;
};
const OptimizerTraits& optimizer_traits(const std::string& name);  // throws ConfigError
std::vector<std::string> optimizer_names();

// The optimizer that config.optimizer names, or with parameter groups one for each group that has shards here.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, Stream& stream,
                                          std::vector<ParameterShard> parameter_shards);

}  // namespace witan
