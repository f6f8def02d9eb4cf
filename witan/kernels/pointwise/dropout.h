// Dropout (Srivastava et al., 2014), and jitter from the same random words. Masks are not stored: the backward draws
// them again.
//
// Whether an element is kept is a pure function of (seed, iteration, micro-batch, site, element), so that it depends on
// no layout, order or thread and a repeated forward repeats it. With Philox of base/numbers/rng.h, and key(words) the
// first two of four words as one number, low word first:
//   step  = key(Philox(seed, stream_of("dropout")).block(iteration))
//   batch = key(Philox(step, 0).block(micro_batch))
//   element e is kept if word e % 4 of Philox(batch, site).block(e / 4) is at least p 2^32
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/common/position_runs.h"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels {

// The part of a tensor that is here: `length` of the `whole` elements of each row, element i of them at runs.at(i) of
// the row. All are multiples of 4, as are the beginnings and ends of runs. length 0: the tensor is whole.
struct DroppedPart {
  int64_t length = 0, whole = 0;
  PositionRuns runs = {};

  // The index in the whole tensor of element i of the part.
  int64_t element(int64_t i) const { return length == 0 ? i : i / length * whole + runs.at(i % length); }
  bool operator==(const DroppedPart&) const = default;
};

// How one place of the model drops elements.
struct Dropout {
  double p = 0;             // in [0, 1): the share of zeros; the other elements are divided by 1 - p. 0: no dropout
  uint64_t seed = 0;        // of the run
  Tensor step = {};         // float64 [kStepValues], where the iteration is read
  int64_t micro_batch = 0;  // its number in the global batch
  uint64_t site = 0;        // Philox::stream_of the place's name
  DroppedPart part = {};
  // For attention: the first of this rank's heads among all `heads`; heads 0: the rank has all.
  int64_t first_head = 0, heads = 0;

  bool on() const { return p > 0; }
};

// y[e] = x[e] m[e],  m[e] = kept(e) ? 1 / (1 - p) : 0;  x, y [..] of one floating dtype, contiguous, elements in order.
// y may be x. Of a part of a tensor, e is the element of the whole one, so that parts drop what it would. The gradient
// is the same map: dx = dropout(dy).
void dropout(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& how);
WITAN_KERNEL_TWINS(dropout)

// Uniform noise that multiplies, as on a router's input (Fedus et al., "Switch Transformers", arXiv:2101.03961, 2.2:
// input jitter), or is added, as to embeddings (Jain et al., "NEFTune", arXiv:2310.05914).
struct Jitter {
  double eps = 0;
  bool added = false;
};

// y[e] = x[e] (1 + eps n[e]), or x[e] + eps n[e];  n[e] = 2 w 2^-32 - 1 with the word w that dropout() would compare at
// the site `where`, whose p is not read;  x, y [..] of one floating dtype, contiguous. y may be x. The gradient is the
// same map of dy if noise multiplies, and dy itself if it is added. Parts of a tensor may begin and end anywhere.
void jitter(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& where, const Jitter& noise);
WITAN_KERNEL_TWINS(jitter)

}  // namespace witan::kernels
