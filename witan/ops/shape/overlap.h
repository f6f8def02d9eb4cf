// Ops that move data while the device computes something else. In the forward the op runs on a side stream while the
// main stream computes; then the main stream waits for both. The backward mirrors it: the op's backward begins, the
// backward of what was computed meanwhile follows, and then the main stream waits. Nothing waits on the host, so that
// both may be part of a captured step.
//
// A tape records two nodes for it, one on either side of what is computed meanwhile. The result is that of the op and
// then the rest on one stream, to the bit. CPU and meta streams do one after the other.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "witan/autograd/tape.h"

namespace witan::ops {

// The forward and the backward of an op, which work on the stream that they are given.
//
// Memory is reused in the order of the main stream, so tensors that the side stream reads must live until the main
// stream has waited for it: both may read only `inputs` and their own captures, and may allocate only their results.
struct MovableOp {
  std::vector<Var> inputs;
  std::vector<Tensor> outputs;
  // Writes the outputs.
  std::function<void(Stream& on)> forward;
  // From the gradients of the outputs, some of which may be undefined, to those of the inputs, likewise. What it
  // captured by Tape::save() must be tensors.
  std::function<std::vector<Tensor>(Backward& b, Stream& on, const std::vector<Tensor>& gradients)> backward;
};

// The computation beside an op on `side`, a side stream of the tape's stream, which must outlive the tape.
struct Meanwhile {
  Stream* side = nullptr;
  std::function<void(Tape& tape)> compute;
};

// Runs the op on the side stream, which does nothing else until `meanwhile` is computed. The gradient of a value that
// both read is that of meanwhile's part plus that of the op, in this order.
std::vector<Var> overlapped(Tape& tape, const MovableOp& op, const Meanwhile& meanwhile);

// Splits a batch into halves, so that one can be computed while the other travels between ranks: x [B, ..], contiguous,
// with an even B -> views of its first and its last B / 2 rows. Throws ShapeError.
std::array<Var, 2> split_batch(Tape& tape, const Var& x);
// Its inverse: [B / 2, ..] each, contiguous -> [B, ..]. Throws ShapeError.
Var join_batch(Tape& tape, const std::array<Var, 2>& halves);

}  // namespace witan::ops
