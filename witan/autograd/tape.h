// Reverse-mode automatic differentiation of one micro-batch.
//
// An op computes its output and records a node: a closure that computes the gradients of the inputs from the gradient
// of the output. Closures hold Saved handles, never tensors or parameters: a saved parameter is a reference that
// backward unpacks, and a rematerialised value is recomputed when it is needed. backward() runs the nodes in reverse
// and destroys each closure as soon as it has run, which frees its memory. A tape belongs to one rank; nothing is
// shared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "witan/tensor/tensor.h"

namespace witan {

class Tape;
class Backward;

// The interface of a parameter for the tape. nn::Parameter is the only implementation.
struct Leaf {
  virtual ~Leaf() = default;
  virtual const Tensor& value() = 0;                        // in the compute dtype
  virtual const Shape& shape() { return value().shape(); }  // known without a value
  virtual DType dtype() { return value().dtype(); }
  // Called before the tape first uses the gradient, so that its buffer can be allocated late.
  virtual void prepare_gradient() {}
  virtual Tensor& gradient() = 0;        // the accumulation buffer, in the gradient dtype
  virtual void on_gradient_ready() = 0;  // after the parameter's last use in one backward pass
  // The gradient may be stored as one buffer per source rank of the rows, so that these can be summed in a defined
  // order. gradient() is the first of them.
  virtual int64_t gradient_parts() const { return 1; }
  virtual Tensor& gradient_part(int64_t) { return gradient(); }
  // Sums of blocks of the gradient (kernels/common/block_sums.h), which every writer keeps up to date by
  // Backward::write_with_sums(). Undefined if none are kept; a gradient in parts has none.
  virtual Tensor gradient_block_sums() const { return {}; }

  bool gradient_written = false;  // false: the next writer overwrites; true: it accumulates
  bool frozen = false;            // not trained: the tape computes no gradient of it and never asks for one
  bool trained() const { return !frozen; }
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
  bool needs_gradient() const { return data_->leaf != nullptr ? data_->leaf->trained() : data_->slot >= 0; }
  // Whether savers keep how to compute it again, instead of the value (rematerialised()).
  bool is_rematerialised() const { return data_->recipe != nullptr; }
  // No other Var or Saved holds this value: it may be overwritten.
  bool unique() const { return data_.use_count() == 1 && !data_->leaf && data_->value.unique(); }

 private:
  friend class Tape;
  struct Recipe;  // how to recompute a value
  struct Remade;  // that, and the value while its savers need it
  struct Data {
    Tensor value;
    int64_t slot = -1;                    // where the tape stores the gradient; -1: none is wanted
    Leaf* leaf = nullptr;                 // gradients of leaves live in the leaf
    std::optional<DType> gradient_dtype;  // none: that of the value
    std::shared_ptr<Recipe> recipe;
  };
  friend class RecomputedSegment;
  explicit Var(Data data) : data_(std::make_shared<Data>(std::move(data))) {}
  std::shared_ptr<Data> data_;

  friend class Backward;
  friend class Saved;
  friend class Slot;
};

// A term of a step's loss: coefficient x value, reported under its name.
struct LossSpec {
  enum class Over : uint8_t {
    // The value is this micro-batch's and rank's share of a mean over the step's tokens: it is already divided by their
    // number, and shares add up. Tensor-parallel ranks all have the same value.
    tokens,
    // The value is a mean of the whole micro-batch, the same on all ranks that hold some of its tokens. The step's is
    // the mean over micro-batches.
    micro_batches,
  };
  std::string name;  // also the key in metrics.jsonl
  double coefficient = 1;
  Over over = Over::tokens;

  bool operator==(const LossSpec&) const = default;
};

// A loss as a pass computed it.
struct LossRecord : LossSpec {
  Var value;  // [1]
};

// Identifies an input of a node, to pass a gradient to it.
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
  bool wanted() const { return leaf_ != nullptr ? leaf_->trained() : slot_ >= 0; }
};

// A value that backward will need. Empty on a disabled tape.
class Saved : public Slot {
 public:
  Saved() = default;

 private:
  friend class Tape;
  friend class Backward;
  Tensor tensor_;
  std::shared_ptr<Var::Remade> remade_;  // shared by all savers of one value; the last one to go frees the value
};

class Tape {
 public:
  enum class Mode : uint8_t { record, off };

  explicit Tape(Stream& stream, Mode mode = Mode::record)
      : stream_(&stream), mode_(mode), training_forward_(mode == Mode::record), keeps_losses_(recording()) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // The stream that ops are queued on: the one passed to the constructor, except within concurrently() (concurrent.h).
  Stream& stream() { return *stream_; }
  bool recording() const { return mode_ == Mode::record; }
  // Whether this is the first forward of a pass whose backward follows. A step counts tokens and routes in it, not in a
  // forward without a backward, nor in one that recomputes a segment.
  bool training_forward() const { return training_forward_; }

  Var constant(Tensor value);    // needs no gradient
  Var input(Tensor value);       // its gradient can be read after backward()
  Var parameter(Leaf& leaf);     // its gradient goes to the leaf
  Var detached(const Var& var);  // the same value, which passes no gradient on

  // Saves what backward needs. A Tensor that is not a Var (statistics, indices) can be saved too.
  Saved save(const Var& var);
  Saved save(const Tensor& tensor);
  Slot slot(const Var& var) const;
  // Saves a value that backward needs only for the gradient of `other`; empty if that gradient is not needed.
  Saved save_for(const Var& other, const Var& var) { return other.needs_gradient() ? save(var) : Saved(); }

  // Called with the gradients of the outputs, in order; an unused output has an undefined one. Not called when no
  // output was used.
  using BackwardFn = std::function<void(Backward&, const std::vector<Tensor>& gradients)>;
  using BackwardFn1 = std::function<void(Backward&, const Tensor& gradient)>;
  Var record(const char* name, Tensor output, const std::vector<Var>& inputs, BackwardFn1 backward);
  std::vector<Var> record(const char* name, std::vector<Tensor> outputs, const std::vector<Var>& inputs,
                          BackwardFn backward);

  // Returns `var` as a value that later ops do not save: a saver keeps `compute` instead, which must return the same
  // bits from what it captured by save(). The result is shared among its savers and freed after the last of them. See
  // rematerialised() in recompute.h.
  Var with_recipe(const Var& var, std::function<Tensor(Backward&)> compute);

  // Returns `var` as a value whose gradient is summed in the accumulator dtype. It is for values computed from
  // parameters that products use as weights: they write a parameter's own gradient in that dtype too.
  Var with_wide_gradient(const Var& var);

  // A node that only calls back when backward reaches it; modules use it to detect where their backward begins and
  // ends. Returns its place.
  size_t mark(std::function<void()> on_backward);
  // Ends the section that began at `place` with a second mark. Both are removed if nothing was recorded in between,
  // since backward then has nothing to do there.
  void close_mark(size_t place, std::function<void()> on_backward);

  // Adds a loss [1] to the step's. Modules call it in their forward, and need not know who runs them: the first run of
  // a recomputed segment hands its losses on to the tape around it, and a forward without a backward records none.
  void add_loss(LossSpec loss, Var value);
  bool keeps_losses() const { return keeps_losses_; }  // false: add_loss() does nothing
  const std::vector<LossRecord>& losses() const { return losses_; }

  // Adds to the gradient of a value before backward(), for a root whose value is not kept until then.
  void seed(const Slot& root, Tensor gradient) { add(root, std::move(gradient)); }
  // Runs the recorded nodes in reverse from several (output, gradient) roots. An undefined gradient means ones. Call
  // once.
  void backward(const std::vector<std::pair<Var, Tensor>>& roots);
  // The gradient of an input(); undefined if no gradient reached it.
  Tensor gradient(const Var& input) const { return gradient(slot(input)); }
  Tensor gradient(const Slot& input) const;

  // Parameters used on this tape, in order of first use (also when it is off).
  const std::vector<Leaf*>& leaves() const { return leaves_; }

 private:
  friend class Backward;
  friend class RecomputedSegment;
  struct Node {
    const char* name;
    std::string_view module;       // in which it was recorded (TraceContext::module)
    std::vector<int64_t> outputs;  // slots
    std::vector<Leaf*> leaves;     // with uses counted by this node
    BackwardFn backward;
    std::function<void()> mark;
    Stream* stream = nullptr;  // on which it was recorded, and runs; of marks: any
  };
  friend void concurrently(Tape&, Stream&, const std::function<void(Tape&)>&, const std::function<void(Tape&)>&);

  std::vector<Var> record_with_leaves(const char* name, std::vector<Tensor> outputs, const std::vector<Var>& inputs,
                                      std::vector<Leaf*> leaves, BackwardFn backward);
  void add(const Slot& to, Tensor gradient);
  void finish_uses(const Node& node);
  void signal_ready(Leaf& leaf);

  Stream* stream_;
  Mode mode_;
  bool training_forward_;
  bool keeps_losses_;  // false: no backward follows
  std::vector<Node> nodes_;
  std::vector<Tensor> gradients_;  // by slot
  std::vector<LossRecord> losses_;
  std::vector<Leaf*> leaves_;
  std::unordered_map<Leaf*, int> uses_;
  bool signals_ready_ = true;       // false inside a recomputed segment: its outer node signals instead
  bool concurrent_ = false;         // within the backward of parts that ran at the same time
  std::vector<Leaf*> ready_after_;  // leaves whose gradients are complete once both parts are over
};

// The interface of backward for a node's closure.
class Backward {
 public:
  explicit Backward(Tape& tape) : tape_(tape) {}
  Stream& stream() { return *tape_.stream_; }

  Tensor value(const Saved& saved);  // unpacks; recomputes a rematerialised value
  bool wants(const Slot& slot) const { return slot.wanted(); }
  // Passes a gradient of the input's shape on. The first one is stored without a copy; later ones are added. Dropped if
  // the input needs no gradient. A parameter's is converted to the gradient dtype.
  void add(const Slot& slot, Tensor gradient);
  // Calls write(to, how) with a tensor of the input's shape to put its gradient into: a parameter's own buffer (in the
  // gradient dtype; overwritten by the first writer, accumulated into by later ones) or a fresh tensor, to be
  // overwritten, of the input's dtype. Not called if the input needs no gradient. For writers that support `how`;
  // others use add().
  void write(const Slot& slot, const std::function<void(const Tensor& to, Write how)>& write);
  // Like write(), once for each buffer of a gradient that is stored per source rank (Leaf::gradient_parts).
  void write_parts(const Slot& slot,
                   const std::function<void(const Tensor& to, Write how, int64_t part, int64_t parts)>& write);
  // Like write_parts(), for writers that also fill the sums of blocks, where the gradient has some.
  struct Part {
    Tensor to;
    Write how;
    int64_t part = 0, parts = 1;
    Tensor block_sums = {};  // Leaf::gradient_block_sums
  };
  void write_with_sums(const Slot& slot, const std::function<void(const Part&)>& write);

 private:
  Tape& tape_;
};

}  // namespace witan
