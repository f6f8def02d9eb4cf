// Optimizers update the shards they are handed (by parallel/sharding/ownership) and never communicate.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/config.h"
#include "witan/optim/step_state.h"

namespace witan {

// A shard whose update is this rank's business: elements [first, first + elements) of the flat local part of a
// parameter. Algorithms that need whole matrices are given whole parameters.
struct Owned {
  Parameter* parameter;
  int64_t first, elements;
};

// A piece of optimizer state as checkpoints see it: a part of a global tensor of the parameter's shape.
struct OptimizerTensor {
  std::string name;                // "adam.m/layers.0.attention.q_proj.weight"
  Tensor tensor;                   // flat; of a master: the value itself, which is its upper half
  const ParameterSpec& parameter;  // whose shape is the global one
  Region region;                   // where the elements of the tensor stand in it
  Tensor remainder = {};           // of a master: its lower half (base/split_float.h)
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of every shard from its parameter's gradient, which must be bound and written. Nothing changes when the
  // step is skipped.
  void update(Stream& stream, const StepState& step);

  // Everything but the values that a resumed run needs, in a fixed order: of each shard the float32 master
  // ("master/NAME", of bfloat16 values alone), then the algorithm's own state.
  void visit(const std::function<void(const OptimizerTensor&)>& visitor) const;

 protected:
  // A shard's tensors, all of them flat.
  struct Shard {
    Owned owned;
    Tensor remainder;                                   // of bfloat16 values: what their float32 masters have beyond
    std::vector<std::pair<std::string, Tensor>> state;  // prefix ("adam.m") and tensor, in the algorithm's order

    Tensor value() const { return owned.parameter->kept_value(owned.first, owned.elements); }
    Tensor gradient() const { return owned.parameter->kept_gradient(owned.first, owned.elements); }
    double weight_decay = 0;
  };

  const std::vector<Shard>& shards() const { return shards_; }

  // State starts as zeros, a tensor per prefix and shard. Throws ShapeError for elements that a parameter does not
  // have.
  Optimizer(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned,
            const std::vector<std::string>& prefixes);

 private:
  virtual void update_shards(Stream& stream, const Tensor& step) = 0;

  std::vector<Shard> shards_;
};

// The one that config.optimizer names.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, Stream& stream, std::vector<Owned> owned);

}  // namespace witan
