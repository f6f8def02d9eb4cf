// Dropout (Srivastava et al., 2014). Masks are stored nowhere: who needs one again draws it again.
//
// Whether an element is kept is a pure function of (seed, iteration, micro-batch, site, element), so that it depends on
// no layout, order or thread and a repeated forward repeats it. With Philox of base/rng.h, and key(words) the first two
// of four words as one number, low word first:
//   step  = key(Philox(seed, stream_of("dropout")).block(iteration))
//   batch = key(Philox(step, 0).block(micro_batch))
//   element e is kept if word e % 4 of Philox(batch, site).block(e / 4) is at least p 2^32
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/common/position_runs.h"
#include "witan/kernels/common/step_value.h"

namespace witan::kernels {

// Of a tensor of which others hold the rest, what is here: of every row of `whole` elements `length`, element i of them
// at runs.at(i). All multiples of 4, runs begin and end at such. length 0: the tensor is whole.
struct DroppedPart {
  int64_t length = 0, whole = 0;
  PositionRuns runs = {};

  // Where element i of the tensor stands in the whole one.
  int64_t element(int64_t i) const { return length == 0 ? i : i / length * whole + runs.at(i % length); }
  bool operator==(const DroppedPart&) const = default;
};

// How one place of the model drops elements.
struct Dropout {
  double p = 0;             // in [0, 1): the share that becomes 0; the others are divided by 1 - p. 0: nothing is done
  uint64_t seed = 0;        // of the run
  Tensor step = {};         // float64 [kStepValues], where the iteration is read
  int64_t micro_batch = 0;  // its number in the global batch
  uint64_t site = 0;        // Philox::stream_of the place's name
  DroppedPart part = {};
  // Of attention: which of `heads` heads its first one is; heads 0: it has them all.
  int64_t first_head = 0, heads = 0;

  bool on() const { return p > 0; }
};

// y[e] = x[e] m[e],  m[e] = kept(e) ? 1 / (1 - p) : 0;  x, y [..] of one floating dtype, contiguous, elements in order.
// y may be x. Of a part of a tensor, e is the element of the whole one, so that parts drop what it would. The gradient
// is the same map: dx = dropout(dy).
void dropout(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& how);
WITAN_KERNEL_TWINS(dropout)

// Noise on what a router reads (Fedus et al., "Switch Transformers", arXiv:2101.03961, 2.2: input jitter).

// y[e] = x[e] (1 + eps (2 u[e] - 1)),  u[e] = w 2^-32 of the word w that dropout at the place `where` would compare
// (kernels/pointwise/dropout.h), whose p is not read;  x, y [..] of one floating dtype, contiguous. y may be x. The
// gradient is the same map. Parts of a tensor may begin and end anywhere.
void jitter(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& where, double eps);
WITAN_KERNEL_TWINS(jitter)

}  // namespace witan::kernels
