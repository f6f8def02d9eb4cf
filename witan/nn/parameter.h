// A trained tensor: value, gradient, a unique dotted name, and which part of the global tensor this rank computes with.
//
// Of that part a rank keeps the value and the sum of gradients as a whole, or, where ranks divide them, elements of its
// own alone: then the whole is there while it is used. value() and gradient() are what kernels read and write; what
// updates, sums up, saves or compares asks for kept_value() and kept_gradient().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/autograd/tape.h"
#include "witan/base/torch_random.h"
#include "witan/comm/placement.h"
#include "witan/tensor/region.h"

namespace witan {

// Initial values never depend on the layout. Witan's own depend on (seed, name, position in the global tensor) alone;
// PyTorch's are drawn in the order of construction, the global tensor on every rank.
struct Initialization {
  enum class Kind : uint8_t { zeros, ones, normal, torch_normal, torch_uniform };
  Kind kind = Kind::normal;
  double std = 0.02;   // of normal; torch_normal has 1
  int64_t fan_in = 0;  // torch_uniform lies in +-1/sqrt(fan_in)
  // Elements at the end of the global tensor that begin at 0, and of which the generator knows nothing.
  int64_t padding = 0;

  static Initialization padded(Initialization init, int64_t elements) {
    init.padding = elements;
    return init;
  }
  bool random() const { return kind != Kind::zeros && kind != Kind::ones; }
  bool drawn() const { return kind == Kind::torch_normal || kind == Kind::torch_uniform; }  // by PyTorch's generator
};

// How a matrix is divided among ranks that multiply parts of it: along `dim`, each of `blocks` equal blocks of that dim
// by itself (gate and up in one matrix are two).
struct Cut {
  int dim = -1;  // -1: it is not
  int64_t blocks = 1;
  bool uneven = false;  // rows of dim 0 that ranks need not have equally many of: nearly_equal_piece()

  bool any() const { return dim >= 0; }
  bool operator==(const Cut&) const = default;
};

// Of `size` entries that ranks divide as evenly as whole entries can be, those of one of them.
struct Piece {
  int64_t begin, size;
};
constexpr Piece nearly_equal_piece(int64_t size, int64_t ranks, int64_t rank) {
  const int64_t begin = size * rank / ranks;
  return {begin, size * (rank + 1) / ranks - begin};
}

// What a parameter is for. Every parameter is of one kind.
enum class ParameterKind : uint8_t {
  embeddings,  // of tokens and of positions; a tied one, which is the head too, is of this kind
  head,        // the output layer's matrix, where it is not tied
  norms,       // weights and biases of norms
  biases,      // of matrices
  routers,     // matrices that score experts
  matrices,    // all other matrices: of attention and of dense MLPs
  experts,     // stacks of experts' matrices
};
inline constexpr int kParameterKinds = 7;
std::string_view name_of(ParameterKind kind);

struct ParameterSpec {
  std::string name;  // "layers.0.attention.q_proj.weight": unique in the model, and its name in checkpoints
  Shape shape;       // the global tensor
  DType dtype = DType::f32;
  Initialization init = {};
  bool weight_decay = true;  // Megatron's rule: matrices yes, norms and biases no
  bool expert = false;       // a stack of experts along dim 0, which the expert axis divides
  Cut cut = {};              // by the tensor axis, of an expert by the expert tensor axis
  // What ranks of the tensor axis do with one that is not cut: the same, or each applies it to tokens of its own.
  Placement::Uses uses = Placement::Uses::same;
  int unit = 0;       // of the model (model/unit.h): what is sharded, gathered and bucketed together
  int chunk = 0;      // of the layers of its stage of a pipeline, which it is used in
  bool tied = false;  // an embedding that is the head too: the first and the last stage hold it
  bool copy = false;  // the last stage's, which is neither counted nor saved
  ParameterKind kind = ParameterKind::matrices;
  bool beside = false;  // side by side with the parameter before it: kernels use both as one matrix

  // Which part of the whole a rank holds, and the shape that it has there: of `expert_ranks` the expert_rank-th share
  // of the experts, of `cut_ranks` the cut_rank-th piece of each. Throws ShapeError when a dim that must does not
  // divide evenly.
  struct Part {
    Region region;
    Shape shape;
    int64_t most = shape.elements();  // elements of the largest of the pieces that it is one of
  };
  Part whole() const { return {{0, shape.elements()}, shape}; }
  Part part(int expert_ranks, int expert_rank, int cut_ranks, int cut_rank) const;
};

class Parameter final : public Leaf {
 public:
  // This rank's part. Allocates and initialises the value. `torch` is needed by the kinds that draw from it.
  // `place`: memory for the value, of its shape and dtype, where it is to lie beside others; undefined: anywhere.
  Parameter(Stream& stream, ParameterSpec spec, const ParameterSpec::Part& part, uint64_t seed,
            TorchRandom* torch = nullptr, Tensor place = {});
  // Without a value: keep_value() gives it, once it is known who keeps what.
  Parameter(ParameterSpec spec, const ParameterSpec::Part& part);

  const std::string& name() const { return spec_.name; }
  const ParameterSpec& spec() const { return spec_; }
  const Shape& global_shape() const { return spec_.shape; }
  const Region& region() const { return region_; }  // of the flat global tensor, that this rank computes with
  const Shape& shape() const { return shape_; }     // of that part
  const Shape& shape() override { return shape_; }
  DType dtype() override { return spec_.dtype; }
  int64_t elements() const { return shape_.elements(); }
  // The most that any of the ranks which divide it holds: what they must decide alike depends on this, not on
  // elements().
  int64_t most_elements() const { return most_; }

  const Tensor& value() override { return std::as_const(*this).value(); }
  const Tensor& value() const {
    if ((!value_.defined() || awaits_value_) && value_wanted) value_wanted();
    return value_;
  }
  Tensor& gradient() override { return gradient_part(0); }
  int64_t gradient_parts() const override { return static_cast<int64_t>(gradients().size()); }
  Tensor& gradient_part(int64_t part) override { return gradients()[static_cast<size_t>(part)]; }
  void on_gradient_ready() override {
    if (gradient_ready) gradient_ready(*this);
  }

  // The buffer that micro-batches accumulate into: the value's shape, contiguous, owned by whoever reduces gradients.
  // Its dtype is a choice of the run, never of the layout. Throws ShapeError.
  void bind_gradient(Tensor gradient);
  // The same for a gradient kept in parts by the rank that its rows came from: one for each rank of the expert axis.
  void bind_gradient_parts(std::vector<Tensor> gradients);
  // Until it is wanted again there is none.
  void unbind_gradient();
  // Forgets the gradient: the next writer overwrites it.
  void clear_gradient() { gradient_written = false; }

  // Elements [first, first + elements) of the flat local part, flat; among those that this rank keeps.
  Tensor kept_value(int64_t first, int64_t elements) const { return part_of(kept_value_, value_, first, elements); }
  Tensor kept_gradient(int64_t first, int64_t elements) const {
    return part_of(kept_gradient_, gradients_.front(), first, elements);
  }
  Tensor kept_value() const {  // all that this rank keeps, from kept_first() on
    return kept_value_.flat.defined() ? kept_value_.flat : value().reshape({elements()});
  }
  int64_t kept_first() const { return kept_value_.first; }
  // From now on this rank keeps elements from `first` on alone, here: `flat` [n]. Values begin as the specification has
  // them.
  void keep_value(Stream& stream, Tensor flat, int64_t first, uint64_t seed, TorchRandom* torch);
  // Leaves the generator where it is once another rank has drawn this parameter's values.
  void draw_past(TorchRandom& random) const;
  void keep_gradient(Tensor flat, int64_t first) { kept_gradient_ = {std::move(flat), first}; }
  // The whole, while it is here; undefined: no more.
  void bind_value(Tensor whole);

  // What the head of a tied embedding uses it as: the parameter itself or, once the head's gradient is kept apart, a
  // leaf with a gradient of its own, which is written before the parameter is ready.
  Leaf& as_head() { return head_ ? static_cast<Leaf&>(*head_) : *this; }
  // Keeps it apart. `gradient` as for bind_gradient(), of which it is forgotten too.
  void bind_head_gradient(Tensor gradient);
  void keep_head_gradient_apart();  // from now on, though there is none yet

  std::function<void(Parameter&)> gradient_ready;
  // Whether another rank has newer values of the whole that is here, which are wanted before it is read. What this rank
  // updates is never old: kept_value(first, elements).
  void await_value(bool awaits) { awaits_value_ = awaits; }
  // Asked for what is not there: they bind it.
  std::function<void()> value_wanted, gradient_wanted;

 private:
  struct Head final : Leaf {
    explicit Head(Parameter& of) : parameter(of) {}
    const Tensor& value() override { return parameter.value(); }
    const Shape& shape() override { return parameter.shape(); }
    DType dtype() override { return parameter.dtype(); }
    Tensor& gradient() override {
      make_gradient();
      return own_gradient;
    }
    int64_t gradient_parts() const override {
      make_gradient();
      return 1;
    }
    void on_gradient_ready() override {}
    void make_gradient() const {
      if (!own_gradient.defined() && parameter.gradient_wanted) parameter.gradient_wanted();
    }
    Parameter& parameter;
    Tensor own_gradient;
  };
  struct Kept {
    Tensor flat;  // undefined: all of it, where the whole is
    int64_t first = 0;
  };
  std::vector<Tensor>& gradients() const {
    if (!gradients_.front().defined() && gradient_wanted) gradient_wanted();
    return gradients_;
  }
  void check_gradient(const Tensor& gradient) const;
  void bind_gradients(std::vector<Tensor> gradients);
  static Tensor part_of(const Kept& kept, const Tensor& whole, int64_t first, int64_t elements);
  void begin(Stream& stream, const Kept& kept, uint64_t seed, TorchRandom* torch);
  void initialize(Stream& stream, const Kept& kept, uint64_t seed);
  void draw(Stream& stream, const Kept& kept, TorchRandom& random);
  void draw(TorchRandom& random, const TorchRandom::Sink& keep) const;

  ParameterSpec spec_;
  Region region_;
  Shape shape_;
  int64_t most_;
  bool awaits_value_ = false;
  Tensor value_;
  // parts; one, undefined, until it is bound
  mutable std::vector<Tensor> gradients_ = std::vector<Tensor>(1);
  Kept kept_value_, kept_gradient_;
  std::unique_ptr<Head> head_;
};

}  // namespace witan
