// A tensor that is trained, unless it is frozen: value, gradient, a unique dotted name, and the part of the global
// tensor that this rank computes with.
//
// A rank holds the value and the gradient of that part as a whole or, if data-parallel ranks shard them, only its own
// shard: the whole is then available while its unit of the model is acquired (model/unit.h). Kernels read and write
// value() and gradient(), which never communicate; updates, reductions, checkpoints and comparisons use value_shard()
// and gradient_shard(). A frozen matrix may be kept as codes (kernels/quantised/quantised.h), of the whole part or of
// the shard, and has a value only while its unit is acquired.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/autograd/tape.h"
#include "witan/base/numbers/rng.h"
#include "witan/base/numbers/torch_random.h"
#include "witan/comm/placement.h"
#include "witan/kernels/quantised/quantised.h"
#include "witan/tensor/region.h"

namespace witan {

// Initial values never depend on the layout. Witan's own depend on (seed, name, position in the global tensor) only;
// PyTorch's are drawn in the order of construction, each rank drawing the global tensor.
struct Initialization {
  enum class Kind : uint8_t {
    zeros,
    ones,
    constant,
    normal,
    log_uniform,
    inverse_softplus,
    torch_normal,
    torch_uniform
  };
  Kind kind = Kind::normal;
  double std = 0.02;   // of normal; torch_normal has 1
  int64_t fan_in = 0;  // torch_uniform lies in +-1/sqrt(fan_in)
  // Elements at the end of the global tensor that begin at 0, and are not drawn.
  int64_t padding = 0;
  double value = 0;  // of constant
  // log_uniform is the logarithm of a number between these; inverse_softplus the number whose softplus is between them,
  // with a uniform logarithm.
  double least = 0, most = 0;

  static Initialization constant(double value) {
    Initialization init{Kind::constant};
    init.value = value;
    return init;
  }
  static Initialization padded(Initialization init, int64_t elements) {
    init.padding = elements;
    return init;
  }
  static Initialization log_uniform(double least, double most) {
    Initialization init{Kind::log_uniform};
    init.least = least, init.most = most;
    return init;
  }
  static Initialization inverse_softplus(double least, double most) {
    Initialization init{Kind::inverse_softplus};
    init.least = least, init.most = most;
    return init;
  }
  bool random() const {
    return kind == Kind::normal || kind == Kind::log_uniform || kind == Kind::inverse_softplus || drawn();
  }
  bool drawn() const { return kind == Kind::torch_normal || kind == Kind::torch_uniform; }  // by PyTorch's generator
};

// The tensor-parallel sharding of a matrix: along `dim`, of which each of `blocks` equal blocks is split by itself
// (gate and up in one matrix are two blocks).
struct TensorSplit {
  int dim = -1;  // -1: not sharded
  int64_t blocks = 1;
  bool uneven = false;  // the ranks need not divide dim 0: nearly_equal_piece()

  bool any() const { return dim >= 0; }
  bool operator==(const TensorSplit&) const = default;
};

// A rank's part of `size` entries, which ranks divide as evenly as whole entries can be divided.
struct Piece {
  int64_t begin, size;
};
constexpr Piece nearly_equal_piece(int64_t size, int64_t ranks, int64_t rank) {
  const int64_t begin = size * rank / ranks;
  return {begin, size * (rank + 1) / ranks - begin};
}

// The kind of a parameter, of which each has one.
enum class ParameterKind : uint8_t {
  embeddings,  // of tokens and of positions, also if tied to the head
  head,        // the output layer's matrix, if it is not tied
  norms,       // weights and biases of norms, and single learned factors
  biases,      // of matrices
  routers,     // matrices that score experts
  matrices,    // all other matrices: of attention and of dense MLPs
  experts,     // stacks of experts' matrices
};
inline constexpr int kParameterKinds = 7;
std::string_view name_of(ParameterKind kind);

// The state of a unit of the model: its name, and the number of guards that hold its values.
struct UnitState {
  std::string name;
  int guards = 0;
};

struct ParameterSpec {
  std::string name;  // "layers.0.attention.q_proj.weight": unique in the model, and its name in checkpoints
  Shape shape;       // the global tensor
  DType dtype = DType::f32;
  Initialization init = {};
  bool weight_decay = true;       // Megatron's rule: matrices yes, norms and biases no
  bool expert = false;            // a stack of experts along dim 0, sharded over the expert axis
  TensorSplit tensor_split = {};  // over the tensor axis; for experts over the expert_tensor axis
  // Whether tensor-parallel ranks apply a parameter that is not split to the same tokens, or each to its own.
  Placement::Uses uses = Placement::Uses::same;
  int unit = 0;       // unit of the model (model/unit.h), which is sharded, gathered and bucketed together
  int chunk = 0;      // the chunk of its pipeline stage's layers
  bool tied = false;  // an embedding that is the head too: the first and the last stage hold it
  bool copy = false;  // the last stage's copy, which is neither counted nor saved
  ParameterKind kind = ParameterKind::matrices;
  bool fused_with_previous = false;  // adjacent to the parameter before it: kernels use both as one matrix
  bool frozen = false;               // not trained: without a gradient and without optimizer state
  kernels::WeightFormat format = kernels::WeightFormat::none;  // of codes that a frozen matrix is kept as

  bool in_codes() const { return format != kernels::WeightFormat::none; }

  // The part that a rank holds, and its shape: the expert_rank-th of `expert_ranks` shares of the experts, and of each
  // expert the tensor_rank-th of `tensor_ranks` shards. Throws ShapeError if a dim is not divisible.
  struct Part {
    Region region;
    Shape shape;
    int64_t most = shape.elements();  // elements of the largest shard over the same ranks
  };
  Part whole() const { return {{0, shape.elements()}, shape}; }
  Part part(int expert_ranks, int expert_rank, int tensor_ranks, int tensor_rank) const;
};

class Parameter final : public Leaf {
 public:
  // Allocates and initialises the value of this rank's part. Initializations drawn by PyTorch's generator need `torch`.
  // `place`: memory for the value, of its shape and dtype, if it must be adjacent to others; undefined: anywhere.
  Parameter(Stream& stream, ParameterSpec spec, const ParameterSpec::Part& part, uint64_t seed,
            TorchRandom* torch = nullptr, Tensor place = {});
  // Has no value until init_value_shard() or init_codes(), once its sharding is known. Throws ConfigError if the part
  // of a matrix that is kept as codes has rows that are not whole groups of them.
  Parameter(ParameterSpec spec, const ParameterSpec::Part& part);

  const std::string& name() const { return spec_.name; }
  const ParameterSpec& spec() const { return spec_; }
  const Shape& global_shape() const { return spec_.shape; }
  const Region& region() const { return region_; }  // of the flat global tensor, that this rank computes with
  const Shape& shape() const { return shape_; }     // of that part
  const Shape& shape() override { return shape_; }
  DType dtype() override { return spec_.dtype; }
  int64_t elements() const { return shape_.elements(); }
  // The most elements that any of the ranks which divide it holds. Decisions on which ranks must agree depend on this,
  // not on elements().
  int64_t most_elements() const { return most_; }

  const Tensor& value() override { return std::as_const(*this).value(); }
  // Throws Error if the values of the parameter's unit are gathered on demand, and no guard has acquired it.
  const Tensor& value() const {
    if (unit_ != nullptr && unit_->guards == 0) throw_unacquired();
    return value_;
  }
  Tensor& gradient() override { return gradient_part(0); }
  void prepare_gradient() override {
    if (!gradients_.front().defined() && make_gradient) make_gradient();
  }
  int64_t gradient_parts() const override { return static_cast<int64_t>(gradients_.size()); }
  Tensor& gradient_part(int64_t part) override { return gradients_[static_cast<size_t>(part)]; }
  Tensor gradient_block_sums() const override { return block_sums_; }
  void on_gradient_ready() override {
    if (gradient_ready) gradient_ready(*this);
  }

  // The buffer that micro-batches accumulate into: of the value's shape, contiguous, owned by the gradients' reducer.
  // Its dtype depends on the run, never on the layout. Throws ShapeError.
  void bind_gradient(Tensor gradient);
  // Binds a gradient in parts by the source rank of its rows, one for each rank of the expert axis.
  void bind_gradient_parts(std::vector<Tensor> gradients);
  // Leaves the parameter without a gradient until one is bound again.
  void unbind_gradient();
  // Binds the sums of blocks (kernels/common/block_sums.h) of a gradient whose writers can fill them (can_sum_blocks).
  void bind_gradient_block_sums(Tensor sums);
  // Forgets the gradient: the next writer overwrites it.
  void clear_gradient() { gradient_written = false; }

  // Elements [first, first + elements) of the flat local part, flat. They must be in this rank's shard.
  Tensor value_shard(int64_t first, int64_t elements) const { return part_of(value_shard_, value_, first, elements); }
  Tensor gradient_shard(int64_t first, int64_t elements) const {
    return part_of(gradient_shard_, gradients_.front(), first, elements);
  }
  // All of this rank's shard, from shard_first() on. If values are not sharded it is the whole, whose elements that
  // other ranks update may be outdated until the unit is acquired.
  Tensor value_shard() const { return value_shard_.flat.defined() ? value_shard_.flat : value_.reshape({elements()}); }
  int64_t shard_first() const { return value_shard_.first; }
  // Makes this rank hold only the n elements from `first` on, in `flat` [n], initialised as the specification says.
  void init_value_shard(Stream& stream, Tensor flat, int64_t first, uint64_t seed, TorchRandom* torch);
  // Makes this rank hold only these codes, of the elements from `first` on, initialised as the specification says.
  void init_codes(Stream& stream, kernels::Codes codes, int64_t first, uint64_t seed, TorchRandom* torch);
  bool in_codes() const { return spec_.in_codes(); }
  const kernels::Codes& codes() const { return codes_; }  // of this rank's shard, from shard_first() on
  // Returns the tensors that this rank keeps: its shard of the value, or the words and the scales of its codes.
  std::vector<Tensor> kept() const;
  // Advances the generator as if this rank had drawn the parameter's values.
  void draw_past(TorchRandom& random) const;
  void bind_gradient_shard(Tensor flat, int64_t first) { gradient_shard_ = {std::move(flat), first}; }
  // Binds the gathered whole; undefined: it is gone.
  void bind_value(Tensor whole);
  // Makes value() require a guard; null: it does not. The state must outlive its use.
  void want_guard(const UnitState* unit) { unit_ = unit; }

  // The leaf that the head of a tied embedding uses: the parameter itself or, once the head's gradient is apart, a leaf
  // with its own gradient, which is written before the parameter is ready.
  Leaf& as_head() { return head_ ? static_cast<Leaf&>(*head_) : *this; }
  // Gives the head its own gradient, bound as by bind_gradient() and forgotten with the parameter's.
  void bind_head_gradient(Tensor gradient);
  void set_head_gradient_apart();  // before that gradient is bound

  // Whether only products that can fill sums of blocks write the gradient.
  bool can_sum_blocks = false;

  std::function<void(Parameter&)> gradient_ready;
  // Binds a gradient that is wanted and not bound yet.
  std::function<void()> make_gradient;

 private:
  struct Head final : Leaf {
    explicit Head(Parameter& of) : parameter(of) { frozen = of.frozen; }
    const Tensor& value() override { return parameter.value(); }
    const Shape& shape() override { return parameter.shape(); }
    DType dtype() override { return parameter.dtype(); }
    void prepare_gradient() override {
      if (!own_gradient.defined() && parameter.make_gradient) parameter.make_gradient();
    }
    Tensor& gradient() override { return own_gradient; }
    void on_gradient_ready() override {}
    Parameter& parameter;
    Tensor own_gradient;
  };
  struct Shard {
    Tensor flat;  // undefined: the shard is the whole
    int64_t first = 0;
  };
  [[noreturn]] void throw_unacquired() const;
  void check_gradient(const Tensor& gradient) const;
  void bind_gradients(std::vector<Tensor> gradients);
  static Tensor part_of(const Shard& shard, const Tensor& whole, int64_t first, int64_t elements);
  void begin(Stream& stream, const Shard& shard, uint64_t seed, TorchRandom* torch);
  void initialize(Stream& stream, const Shard& shard, uint64_t seed);
  // The initial values of the region's elements from `local` on; padding is 0.
  void initial_values(const Philox& rng, int64_t local, std::span<double> values) const;
  void draw(Stream& stream, const Shard& shard, TorchRandom& random);
  void draw_codes(Stream& stream, TorchRandom& random);
  void initialize_codes(Stream& stream, uint64_t seed);
  void draw(TorchRandom& random, const TorchRandom::Sink& keep) const;

  ParameterSpec spec_;
  Region region_;
  Shape shape_;
  int64_t most_;
  const UnitState* unit_ = nullptr;
  Tensor value_;
  // parts; one, undefined, until it is bound
  std::vector<Tensor> gradients_ = std::vector<Tensor>(1);
  Shard value_shard_, gradient_shard_;
  kernels::Codes codes_;  // undefined: the value is kept
  Tensor block_sums_;     // of the gradient; undefined: they are not kept
  std::unique_ptr<Head> head_;
};

}  // namespace witan
