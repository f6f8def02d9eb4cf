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

// An op in its two halves, which work on whatever stream they are given.
//
// Memory is reused in the order of the main stream, so that what the other one reads must live until it is waited for:
// both halves may read what `inputs` and their own captures hold, must capture all else that they read, and may
// allocate nothing but what they return.
struct MovableOp {
  std::vector<Var> inputs;
  std::vector<Tensor> outputs;
  // Writes the outputs.
  std::function<void(Stream& on)> forward;
  // From the gradients of the outputs, some of which may be undefined, to those of the inputs, likewise. What it
  // captured by Tape::save() must be tensors.
  std::function<std::vector<Tensor>(Backward& b, Stream& on, const std::vector<Tensor>& gradients)> backward;
};

// What is computed while an op is on `side`, a side stream of the tape's stream, which must outlive the tape.
struct Meanwhile {
  Stream* side = nullptr;
  std::function<void(Tape& tape)> compute;
};

// The op on the side stream, which does nothing else until `meanwhile` is computed. Where both read a value, its
// gradient is that of meanwhile's part plus that of the op, in this order.
std::vector<Var> overlapped(Tape& tape, const MovableOp& op, const Meanwhile& meanwhile);

// The two halves of a batch, so that one can be computed while the other travels between ranks.
// x [B, ..], contiguous, of an even B -> its first and its last B / 2 rows, which are views of it. Throws ShapeError.
std::array<Var, 2> split_batch(Tape& tape, const Var& x);
// Its inverse: [B / 2, ..] each, contiguous -> [B, ..]. Throws ShapeError.
Var join_batch(Tape& tape, const std::array<Var, 2>& halves);

}  // namespace witan::ops
