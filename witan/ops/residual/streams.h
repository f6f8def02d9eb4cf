// A residual stream of n parallel streams (kernels/residual/streams.h). x [.., n D]: the streams side by side. Throws
// ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/residual/streams.h"

namespace witan::ops {

// The parameters of the weights of streams, in the accumulator dtype of x: w [C, n D], base [C], and scale [3] for
// C = n (n + 2), or [1] for C = n.
struct StreamParameters {
  Var w, base, scale;
};

struct ReadStreams {
  Var y;    // [.., D], the sum of streams that a half of a block reads
  Var mix;  // [T, n + n n], for write_streams(); undefined for C = n
};
// norm_eps: of the norm of x before the projection
ReadStreams read_streams(Tape& tape, const Var& x, const StreamParameters& with, const kernels::StreamMixing& mixing,
                         double norm_eps);

// The streams x, mixed, plus y [.., D], weighted for each.
Var write_streams(Tape& tape, const Var& x, const Var& y, const Var& mix);

// y [.., D] -> [.., n D], the same in each stream
Var copy_to_streams(Tape& tape, const Var& y, int64_t n);

}  // namespace witan::ops
