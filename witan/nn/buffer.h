// State of a module that no gradient reaches: a router's bias, a running count. Every rank that holds the module holds
// the whole buffer, with the same value; its rule says how ranks come to agree on it. Buffers are saved, restored and
// compared (--check-states) like parameters, and counted in no number of parameters.
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
    // Each rank adds what it finds to a share of its own during a step. After the last backward the value becomes the
    // sum of all ranks' shares; a step that is skipped is summed too.
    summed,
    // The same of the largest of all ranks' shares. Every rank of a pipeline stage may have another one.
    largest,
  };

  std::string
      name;  // "layers.0.moe.router.bias": unique in the model, parameters included, and its name in checkpoints
  Shape shape;
  DType dtype = DType::f32;
  double initial = 0;  // of every element, where no checkpoint says otherwise
  Rule rule = Rule::replicated;
  // What tensor-parallel ranks add to a summed buffer: all the same, or each what it finds in tokens of its own; each
  // its own to a largest one.
  Placement::Uses uses = Placement::Uses::same;
  int chunk = 0;      // of the layers of its pipeline stage
  bool copy = false;  // of a tied embedding on the last stage: it is not saved
};

class Buffer {
 public:
  // Allocates the value and fills it with spec.initial.
  Buffer(Stream& stream, BufferSpec spec);

  const std::string& name() const { return spec_.name; }
  const BufferSpec& spec() const { return spec_; }
  // spec.shape; changes after a step's last backward alone.
  const Tensor& value() const { return value_; }

  // Adds `found` (of the buffer's shape and dtype: int64 or floating) to this rank's share of a summed buffer. Nothing
  // happens unless the tape is of a training forward (Tape::training_forward) and somebody sums shares.
  void add(Tape& tape, const Tensor& found) const;
  // Memory for the share of a summed or largest buffer, with the value's shape and dtype, owned by its reducer.
  // Undefined: nobody does.
  void bind_share(Tensor share);
  const Tensor& share() const { return share_; }

 private:
  BufferSpec spec_;
  Tensor value_, share_;
};

}  // namespace witan
