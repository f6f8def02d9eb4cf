// A trained tensor: value, gradient, a unique dotted name, and which part of the global tensor this rank holds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
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

  bool random() const { return kind != Kind::zeros && kind != Kind::ones; }
};

// How a matrix is divided among ranks that multiply parts of it: along `dim`, each of `blocks` equal blocks of that dim
// by itself (gate and up in one matrix are two).
struct Cut {
  int dim = -1;  // -1: it is not
  int64_t blocks = 1;

  bool any() const { return dim >= 0; }
  bool operator==(const Cut&) const = default;
};

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
  int chunk = 0;      // of the layers of its stage of a pipeline, which it is used in
  bool tied = false;  // an embedding that is the head too: the first and the last stage hold it
  bool copy = false;  // the last stage's, which is neither counted nor saved

  // Which part of the whole a rank holds, and the shape that it has there: of `expert_ranks` the expert_rank-th share
  // of the experts, of `cut_ranks` the cut_rank-th piece of each. Throws ShapeError when a dim does not divide evenly.
  struct Part {
    Region region;
    Shape shape;
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

  const std::string& name() const { return spec_.name; }
  const ParameterSpec& spec() const { return spec_; }
  const Shape& global_shape() const { return spec_.shape; }
  const Region& region() const { return region_; }        // of the flat global tensor, that this rank holds
  int64_t elements() const { return value_.elements(); }  // held by this rank

  const Tensor& value() override { return value_; }
  const Tensor& value() const { return value_; }
  Tensor& gradient() override { return gradients_.front(); }
  int64_t gradient_parts() const override { return static_cast<int64_t>(gradients_.size()); }
  Tensor& gradient_part(int64_t part) override { return gradients_[static_cast<size_t>(part)]; }
  void on_gradient_ready() override {
    if (gradient_ready) gradient_ready(*this);
  }

  // The buffer that micro-batches accumulate into: the value's shape, contiguous, owned by whoever reduces gradients.
  // Its dtype is a choice of the run, never of the layout. Throws ShapeError.
  void bind_gradient(Tensor gradient);
  // The same for a gradient kept in parts by the rank that its rows came from: one for each rank of the expert axis.
  void bind_gradient_parts(std::vector<Tensor> gradients);
  // Forgets the gradient: the next writer overwrites it.
  void clear_gradient() { gradient_written = false; }

  // What the head of a tied embedding uses it as: the parameter itself or, once the head's gradient is kept apart, a
  // leaf with a gradient of its own, which is written before the parameter is ready.
  Leaf& as_head() { return head_ ? static_cast<Leaf&>(*head_) : *this; }
  // Keeps it apart. `gradient` as for bind_gradient(), of which it is forgotten too.
  void bind_head_gradient(Tensor gradient);

  std::function<void(Parameter&)> gradient_ready;

 private:
  struct Head final : Leaf {
    explicit Head(Parameter& of) : parameter(of) {}
    const Tensor& value() override { return parameter.value(); }
    Tensor& gradient() override { return own_gradient; }
    void on_gradient_ready() override {}
    Parameter& parameter;
    Tensor own_gradient;
  };

  void check_gradient(const Tensor& gradient) const;
  void initialize(Stream& stream, uint64_t seed);
  void draw(Stream& stream, TorchRandom& random);

  ParameterSpec spec_;
  Region region_;
  Tensor value_;
  std::vector<Tensor> gradients_ = std::vector<Tensor>(1);  // parts; one, undefined, until it is bound
  std::unique_ptr<Head> head_;
};

}  // namespace witan
