// Modules own parameters, buffers and children, and are visited in one deterministic order: the order of construction.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/autograd/tape.h"
#include "witan/nn/buffer.h"
#include "witan/nn/model_services.h"
#include "witan/nn/parameter.h"
#include "witan/nn/tensor_parallel.h"
#include "witan/tensor/trace_context.h"

namespace witan {

struct LoraConfig;  // nn/lora.h
namespace ops {     // ops/fp8/fp8_kept.h, ops/fp8/fp8_quantiser.h
class Fp8Rounds;
class Fp8Quantiser;
struct Fp8Recipe;
}  // namespace ops

// The settings with which modules are built: stream, dtype, path, initialization and layout.
struct Builder {
  Stream& stream;
  DType dtype = DType::f32;  // of weights and activations
  uint64_t seed = 1234;
  double init_std = 0.02;
  double output_init_std = 0.02;  // of projections back into the residual stream: std / sqrt(2 L), as Megatron-LM
  double fan_in_std = 0;          // above 0: matrices have this / sqrt(fan_in) instead, embeddings 1
  int expert_ranks = 1;           // size of the expert axis, and this rank's coordinate on it
  int expert_rank = 0;
  int expert_tensor_ranks = 1;  // likewise of the expert tensor axis
  int expert_tensor_rank = 0;
  std::optional<TensorAxis> tensor = {};    // none: matrices are whole
  std::shared_ptr<TorchRandom> torch = {};  // not null: weights are initialized with PyTorch's defaults
  int unit = 0;                             // of the model: ParameterSpec's
  int chunk = 0;                            // of the rank's stage of a pipeline
  bool tied = false, copy = false;          // of an embedding: ParameterSpec's
  std::string path = {};
  bool values_later = false;                     // parameters begin without values: Parameter::init_value_shard()
  Tensor place = {};                             // memory for the next matrix, if it must be adjacent to others
  bool fused_with_previous = false;              // the next matrix directly follows the one before: ParameterSpec's
  ParameterKind kind = ParameterKind::matrices;  // of the next parameters
  std::shared_ptr<const LoraConfig> lora = {};   // which matrices have adapters; null: none
  // The scaling of 8-bit operands in products with matrices and experts (ops/fp8/fp8_products.h); null: no 8-bit
  // operands
  std::shared_ptr<const ops::Fp8Recipe> fp8 = {};
  std::shared_ptr<const ops::Fp8Rounds> fp8_rounds = {};  // while which weights in 8 bits are kept; null: they are not
  std::function<bool(const ParameterSpec&)> frozen = {};  // which parameters are not trained; none: all are trained
  // The format in which a parameter is kept (model/frozen.h); none: all have the dtype
  std::function<kernels::WeightFormat(const ParameterSpec&)> format = {};
  bool matrices_in_codes = false;  // some matrices outside experts are kept in another format

  // The initialization of a matrix or a stack of matrices: normal with this deviation, or with one that follows from
  // its inputs, or that of torch.nn.Linear.
  Initialization linear_init(double std, int64_t fan_in) const {
    if (torch) return torch_uniform(fan_in);
    return {.std = fan_in_std > 0 ? fan_in_std / std::sqrt(static_cast<double>(fan_in)) : std};
  }
  // The initialization of a matrix's bias: zeros, or that of torch.nn.Linear.
  Initialization bias_init(int64_t fan_in) const {
    return torch ? torch_uniform(fan_in) : Initialization{Initialization::Kind::zeros};
  }
  // The initialization of an embedding: normal with init_std or, as in torch.nn.Embedding, with 1.
  Initialization embedding_init() const {
    if (torch) return {Initialization::Kind::torch_normal};
    return {.std = fan_in_std > 0 ? 1 : init_std};
  }

  // Whether a matrix of this builder is multiplied in 8 bits; the head is not. `weight`: this rank's part. Throws
  // ConfigError if its rows or columns are not multiples of the size that such products need.
  bool multiplies_in_fp8(const Parameter& weight) const;

  int tensor_ranks() const { return tensor ? tensor->group.size() : 1; }
  int tensor_rank() const { return tensor ? tensor->group.rank() : 0; }
  // A rank's share of a size that the tensor axis divides evenly.
  int64_t share(int64_t size) const { return size / tensor_ranks(); }

  // Memory for matrices that must be adjacent; undefined if values come later, which are adjacent anyway.
  Tensor side_by_side(const Shape& shape) const {
    return values_later || matrices_in_codes ? Tensor() : stream.empty(shape, dtype, MemoryTag::weights);
  }
  // The builder of the matrix in rows [first, first + rows) of that memory.
  Builder at(const Tensor& memory, int64_t first, int64_t rows) const {
    Builder here = *this;
    if (memory.defined()) here.place = memory.narrow(0, first, rows);
    here.fused_with_previous = first > 0;
    return here;
  }

  Builder in_unit(int of_model) const {
    Builder there = *this;
    there.unit = of_model;
    return there;
  }
  Builder of_kind(ParameterKind of) const {
    Builder there = *this;
    there.kind = of;
    return there;
  }

  // For parameters that every rank of the tensor axis has whole and applies to its own heads: their gradients are
  // summands, however the residual stream is placed.
  Builder of_own_part() const {
    Builder own = *this;
    if (tensor_ranks() > 1) own.tensor.emplace(tensor->group, Placement::shard(1), tensor->keeps);
    return own;
  }

  Builder in_chunk(int of_stage) const {
    Builder there = *this;
    there.chunk = of_stage;
    return there;
  }

  Builder tied_embedding(bool is_copy) const {
    Builder embedding = *this;
    embedding.tied = true;
    embedding.copy = is_copy;
    return embedding;
  }

  static Initialization torch_uniform(int64_t fan_in) {
    return {.kind = Initialization::Kind::torch_uniform, .fan_in = fan_in};
  }

  // The builder of a child: its path is longer by one name.
  Builder operator/(const std::string& name) const {
    Builder child = *this;
    child.path += (path.empty() ? "" : ".") + name;
    child.place = {};
    child.fused_with_previous = false;
    return child;
  }
};

// Called around a module's forward, and around its part of the backward pass.
struct ModuleHooks {
  std::function<void()> before_forward, after_forward, before_backward, after_backward;
};

// Whether a tensor of this name is a buffer of delayed scales. These belong to a run: the model is the same without
// them.
bool is_fp8_state(std::string_view name);

class Module;

// One observer of a module, whose hooks are called until it is destroyed; it may outlive the module.
class [[nodiscard]] ModuleObserver {
 public:
  ModuleObserver(Module& module, ModuleHooks hooks);

 private:
  std::shared_ptr<const ModuleHooks> hooks_;
};

class Module {
 public:
  explicit Module(std::string path) : path_(std::move(path)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<Module*>& children() const { return children_; }

  // This module's parameters, then its children's.
  std::vector<Parameter*> parameters() const;
  // This module's buffers, then its children's.
  std::vector<Buffer*> buffers() const;
  // This module, then its children, depth first.
  void visit(const std::function<void(Module&)>& visitor);

  // The part of the model that this module's costs are charged to (model/parts.h); empty: that of the module around it.
  virtual std::string_view cost_part() const { return {}; }

  // The losses that this module itself, not its children, records in its forward (Tape::add_loss).
  virtual std::vector<LossSpec> losses() const { return {}; }

  // Keeps the services that the module needs. This implementation passes them to its children.
  virtual void attach(const ModelServices& services);

  // Called at the end of a training step, after the optimizer's update and the reduction of summed buffers: modules
  // write their replicated buffers here. The work is queued on the stream and may be recorded as a graph, so the host
  // must not read or decide anything. Kernels read from `step` (kernels/common/step_report.h) whether the step is
  // skipped, in which case they must change nothing. Not called in evaluation and generation. This implementation
  // updates the module's delayed scales.
  virtual void after_update(Stream& stream, const Tensor& step);

  // The observers' hooks, in the order of registration; those of destroyed observers have expired.
  using Observers = std::vector<std::weak_ptr<const ModuleHooks>>;
  const Observers& observers() const { return observers_; }

 protected:
  // A parameter [shape] named PATH.name, of which this rank holds its tensor-parallel shard. Without a split it must be
  // applied to the residual stream.
  Parameter& add_parameter(const Builder& builder, const std::string& name, const Shape& shape, Initialization init,
                           bool weight_decay = true, TensorSplit tensor_split = {});
  // A stack of experts along dim 0, of which this rank holds its share, and its piece of each.
  Parameter& add_expert_parameter(const Builder& builder, const std::string& name, const Shape& shape,
                                  Initialization init, TensorSplit tensor_split = {});
  // State without a gradient, named like a parameter. `initial`: of every element.
  Buffer& add_buffer(const Builder& builder, const std::string& name, const Shape& shape, DType dtype, double initial,
                     BufferSpec::Rule rule, Placement::Uses uses = Placement::Uses::same);
  // The scaling of the 8-bit operands of products with a weight of this module; null: it is not multiplied in 8 bits.
  // Delayed scales are buffers of the module, named after the weight: NAME_fp8_reference, _fp8_amax and _fp8_history.
  std::shared_ptr<const ops::Fp8Quantiser> add_fp8(const Builder& builder, const Parameter& weight);
  void add_child(Module& child) { children_.push_back(&child); }

 private:
  friend class ModuleObserver;
  struct DelayedScales {
    const Buffer *reference, *amax, *history;  // history: null if only the last step counts
    double factor;
  };
  Parameter& add(const Builder& builder, ParameterSpec spec, const ParameterSpec::Part& part, bool placed);

  std::string path_;
  std::vector<std::unique_ptr<Parameter>> own_;
  std::vector<std::unique_ptr<Buffer>> own_buffers_;
  std::vector<DelayedScales> delayed_scales_;
  std::vector<Module*> children_;
  Observers observers_;
};

// Stands at the top of a forward: sets the module in the stream's trace context, runs its observers' hooks when the
// forward begins and ends, and marks the tape so that they run at the same places of the backward. Observers nest: the
// first one registered is called first when a module is entered, and last when it is left.
class ModuleScope {
 public:
  ModuleScope(Tape& tape, Module& module);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  const TraceContextScope trace_context_;
  Tape& tape_;
  size_t mark_ = 0;                    // the tape's mark at which the forward entered
  const Module::Observers observers_;  // those of the forward: later ones have no part in its backward
};

}  // namespace witan
