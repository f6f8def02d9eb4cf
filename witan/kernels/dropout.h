// Dropout (Srivastava et al., 2014). Masks are stored nowhere: who needs one again draws it again.
//
// Whether an element is kept is a pure function of (seed, iteration, micro-batch, site, element), so that it depends on
// no layout, order or thread and a repeated forward repeats it. With Philox of base/rng.h, and key(words) the first two
// of four words as one number, low word first:
//   step  = key(Philox(seed, stream_of("dropout")).block(iteration))
//   batch = key(Philox(step, 0).block(micro_batch))
//   element e is kept if word e % 4 of Philox(batch, site).block(e / 4) is at least p 2^32
#pragma once

#include "witan/kernels/launch.h"
#include "witan/kernels/step_value.h"

namespace witan::kernels {

// How one place of the model drops elements.
struct Dropout {
  double p = 0;             // in [0, 1): the share that becomes 0; the others are divided by 1 - p. 0: nothing is done
  uint64_t seed = 0;        // of the run
  Tensor step = {};         // float64 [kStepValues], where the iteration is read
  int64_t micro_batch = 0;  // its number in the global batch
  uint64_t site = 0;        // Philox::stream_of the place's name
  // Where the elements stand in a larger tensor, whose mask they share: runs of `run` elements, the first at `first`,
  // each `distance` after the one before; multiples of 4. run 0: they are the whole tensor.
  int64_t first = 0, run = 0, distance = 0;
  // Of attention: which of `heads` heads its first one is; heads 0: it has them all.
  int64_t first_head = 0, heads = 0;

  bool on() const { return p > 0; }
};

// y[e] = x[e] m[e],  m[e] = kept(e) ? 1 / (1 - p) : 0, with e counted in the larger tensor where there is one;
// x, y [..] of one floating dtype, contiguous, elements in order.
// y may be x. The gradient is the same map: dx = dropout(dy).
void dropout(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& how);
WITAN_KERNEL_TWINS(dropout)

}  // namespace witan::kernels
