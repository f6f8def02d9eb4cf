// Reverse-mode differentiation of one micro-batch.
//
// An op computes its output and records a node: a closure that turns the gradient of the output into gradients of the
// inputs. Closures hold Saved handles, never tensors or parameters: a saved parameter is a reference that backward
// unpacks, and a rematerialised value is computed again when it is asked for. backward() runs the nodes in reverse and
// destroys each closure as soon as it ran, which is what returns its memory. One rank uses a tape; nothing is shared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "witan/tensor/tensor.h"

namespace witan {

class Tape;
class Backward;

// What a tape needs of a parameter. nn::Parameter is the only kind there is.
struct Leaf {
  virtual ~Leaf() = default;
  virtual const Tensor& value() = 0;                        // in the compute dtype
  virtual const Shape& shape() { return value().shape(); }  // known without a value
  virtual DType dtype() { return value().dtype(); }
  // The tape is about to write the gradient, and asks for nothing of it before: a buffer may be made now.
  virtual void prepare_gradient() {}
  virtual Tensor& gradient() = 0;        // the accumulation buffer, in the gradient dtype
  virtual void on_gradient_ready() = 0;  // after the parameter's last use in one backward pass
  // A gradient may be kept in parts, one for each rank that its rows came from, so that each can be summed in an order
  // of its own. gradient() is the first.
  virtual int64_t gradient_parts() const { return 1; }
  virtual Tensor& gradient_part(int64_t) { return gradient(); }

  bool gradient_written = false;  // false: the next writer overwrites; true: it accumulates
};

// A value computed on a tape. Cheap to copy; shares its tensor.
class Var {
 public:
  Var() = default;
  bool defined() const { return data_ != nullptr; }
  const Tensor& value() const { return data_->leaf ? data_->leaf->value() : data_->value; }
  const Shape& shape() const { return data_->leaf ? data_->leaf->shape() : data_->value.shape(); }
  DType dtype() const { return data_->leaf ? data_->leaf->dtype() : data_->value.dtype(); }
  int64_t size(int dim) const { return shape()[dim]; }
  bool needs_gradient() const { return data_->leaf != nullptr || data_->slot >= 0; }
  // Nobody else holds this value, as a Var or otherwise: it may be overwritten.
  bool unique() const { return data_.use_count() == 1 && !data_->leaf && data_->value.unique(); }

 private:
  friend class Tape;
  struct Recipe;  // how a value is made again
  struct Remade;  // that, and the value while its savers need it
  struct Data {
    Tensor value;
    int64_t slot = -1;     // where the tape keeps the gradient; -1: none is wanted
    Leaf* leaf = nullptr;  // gradients of leaves live in the leaf
    std::shared_ptr<Recipe> recipe;
  };
  friend std::vector<Var> recomputed(Tape&, const std::vector<Var>&,
                                     const std::function<std::vector<Var>(Tape&, const std::vector<Var>&)>&);
  explicit Var(Data data) : data_(std::make_shared<Data>(std::move(data))) {}
  std::shared_ptr<Data> data_;

  friend class Backward;
  friend class Saved;
  friend class Slot;
};

// Names an input of a node, to deliver a gradient to.
class Slot {
 public:
  Slot() = default;

 private:
  friend class Tape;
  friend class Backward;
  int64_t slot_ = -1;
  Leaf* leaf_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::f32;
  bool wanted() const { return slot_ >= 0 || leaf_ != nullptr; }
};

// A value that backward will need. Empty on a disabled tape.
class Saved : public Slot {
 public:
  Saved() = default;

 private:
  friend class Tape;
  friend class Backward;
  Tensor tensor_;
  std::shared_ptr<Var::Remade> remade_;  // shared by all savers of one value; the last to go takes the value along
};

class Tape {
 public:
  enum class Mode : uint8_t { record, off };

  explicit Tape(Stream& stream, Mode mode = Mode::record)
      : stream_(stream), mode_(mode), training_forward_(mode == Mode::record) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Stream& stream() { return stream_; }
  bool recording() const { return mode_ == Mode::record; }
  // Whether this is the first forward of a pass whose backward follows: what a step counts is counted in it, neither in
  // a forward without a backward nor in one that recomputes a segment.
  bool training_forward() const { return training_forward_; }

  Var constant(Tensor value);  // no gradient
  Var input(Tensor value);     // its gradient can be asked for after backward()
  Var parameter(Leaf& leaf);   // its gradient goes to the leaf

  // Keeps what backward needs. A Tensor that is not a Var (statistics, indices) can be saved too.
  Saved save(const Var& var);
  Saved save(const Tensor& tensor);
  Slot slot(const Var& var) const;

  // Called with the gradients of the outputs, in order; an output that nobody used has an undefined one. Not called
  // when no output was used.
  using BackwardFn = std::function<void(Backward&, const std::vector<Tensor>& gradients)>;
  using BackwardFn1 = std::function<void(Backward&, const Tensor& gradient)>;
  Var record(const char* name, Tensor output, const std::vector<Var>& inputs, BackwardFn1 backward);
  std::vector<Var> record(const char* name, std::vector<Tensor> outputs, const std::vector<Var>& inputs,
                          BackwardFn backward);

  // `var` as a value that later ops do not keep: whoever saves it keeps `compute` instead, which must return the same
  // bits from what it captured by save(). The result is shared among its savers and released after the last of them.
  // See rematerialised() in recompute.h.
  Var with_recipe(const Var& var, std::function<Tensor(Backward&)> compute);

  // A node that only calls back when backward passes it; modules use it to learn where they begin and end.
  void mark(std::function<void()> on_backward);

  // Adds to the gradient of a value, before backward(): a root whose value nobody keeps until then.
  void seed(const Slot& root, Tensor gradient) { add(root, std::move(gradient)); }
  // Runs the recorded nodes in reverse from several (output, gradient) roots. An undefined gradient means ones. Once.
  void backward(const std::vector<std::pair<Var, Tensor>>& roots);
  // The gradient of an input(); undefined when nothing reached it.
  Tensor gradient(const Var& input) const { return gradient(slot(input)); }
  Tensor gradient(const Slot& input) const;

  // Parameters used on this tape, in order of first use (also when it is off).
  const std::vector<Leaf*>& leaves() const { return leaves_; }

 private:
  friend class Backward;
  friend std::vector<Var> recomputed(Tape&, const std::vector<Var>&,
                                     const std::function<std::vector<Var>(Tape&, const std::vector<Var>&)>&);
  struct Node {
    const char* name;
    std::string_view module;       // in which it was recorded: Trail's
    std::vector<int64_t> outputs;  // slots
    std::vector<Leaf*> leaves;     // whose uses this node counts
    BackwardFn backward;
    std::function<void()> mark;
  };

  std::vector<Var> record_with_leaves(const char* name, std::vector<Tensor> outputs, const std::vector<Var>& inputs,
                                      std::vector<Leaf*> leaves, BackwardFn backward);
  void add(const Slot& to, Tensor gradient);
  void finish_uses(const Node& node);

  Stream& stream_;
  Mode mode_;
  bool training_forward_;
  std::vector<Node> nodes_;
  std::vector<Tensor> gradients_;  // by slot
  std::vector<Leaf*> leaves_;
  std::unordered_map<Leaf*, int> uses_;
  bool signals_ready_ = true;  // off inside a recomputed segment: its outer node signals instead
};

// What a node's closure works with.
class Backward {
 public:
  explicit Backward(Tape& tape) : tape_(tape) {}
  Stream& stream() { return tape_.stream_; }

  Tensor value(const Saved& saved);  // unpacks; computes again what was rematerialised
  bool wants(const Slot& slot) const { return slot.wanted(); }
  // Delivers a gradient of the input's shape. The first one is kept without a copy; later ones are added. Dropped when
  // nobody wants it. A parameter's is converted to the gradient dtype.
  void add(const Slot& slot, Tensor gradient);
  // Calls write(to, how) with a tensor of the input's shape to put its gradient into: a parameter's own buffer (in the
  // gradient dtype; overwritten by the first writer, accumulated into by later ones) or a fresh tensor, to be
  // overwritten, of the input's dtype. Not called when nobody wants it. For writers that honour `how`; others use
  // add().
  void write(const Slot& slot, const std::function<void(const Tensor& to, Write how)>& write);
  // The same for each part of a gradient that may be kept in parts (Leaf::gradient_parts).
  void write_parts(const Slot& slot,
                   const std::function<void(const Tensor& to, Write how, int64_t part, int64_t parts)>& write);

 private:
  Tape& tape_;
};

}  // namespace witan
