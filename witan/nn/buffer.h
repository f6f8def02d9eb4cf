// State of a module without a gradient, such as a router's bias or a running count. Every rank that holds the module
// holds the whole buffer, with the same value; its rule says how ranks agree on it. Buffers are saved, restored and
// compared
// (--check-states) like parameters, but not counted as parameters.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "witan/autograd/tape.h"
#include "witan/comm/placement.h"

namespace witan {

struct BufferSpec {
  enum class Rule : uint8_t {
    // All ranks compute the same value from the same inputs, in Module::after_update().
    replicated,
    // During a step each rank adds to its own share. After the last backward the value becomes the sum of all ranks'
    // shares, also in a step that is skipped.
    summed,
    // Takes the largest of all ranks' shares instead.
    largest,
  };

  std::string
      name;  // "layers.0.moe.router.bias": unique in the model, parameters included, and its name in checkpoints
  Shape shape;
  DType dtype = DType::f32;
  double initial = 0;  // of every element, unless a checkpoint is loaded
  Rule rule = Rule::replicated;
  // Whether tensor-parallel ranks add the same to a summed buffer, or each the counts of its own tokens.
  Placement::Uses uses = Placement::Uses::same;
  int chunk = 0;      // the chunk of its pipeline stage's layers
  bool copy = false;  // belongs to the last stage's copy of a tied embedding, and is not saved
};

class Buffer {
 public:
  // Allocates the value and fills it with spec.initial.
  Buffer(Stream& stream, BufferSpec spec);

  const std::string& name() const { return spec_.name; }
  const BufferSpec& spec() const { return spec_; }
  // Has spec.shape, and changes only after a step's last backward.
  const Tensor& value() const { return value_; }

  // Adds `found` (of the buffer's shape and dtype: int64 or floating) to this rank's share of a summed buffer. Does
  // nothing unless the tape records a training forward (Tape::training_forward) and a share is bound.
  void add(Tape& tape, const Tensor& found) const;
  // Binds the memory for the share of a summed or largest buffer, with the value's shape and dtype, owned by its
  // reducer. Undefined: shares are not reduced.
  void bind_share(Tensor share);
  const Tensor& share() const { return share_; }

 private:
  BufferSpec spec_;
  Tensor value_, share_;
};

}  // namespace witan
