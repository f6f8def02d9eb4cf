// Receive buffers for experts' rows that are smaller than the worst case, bounds on the rows that ranks send, and the
// handling of steps that exceed them.
//
// All ranks of an expert axis know the rows that each has for each expert, [R, E], and so decide alike. Rows that do
// not fit are not sent, so that no rank writes beyond a buffer, and the step's updates are skipped. The same holds for
// the rows that a rank may send to another at once, if they are bounded (bounded_exchange.h).
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels {

// The bounds of one of a layer's passes. Pass p of `passes` computes the local experts e of E with e passes / E = p,
// rounded down.
struct PassBounds {
  int64_t rows;  // in a rank's receive buffer
  int64_t rank;  // this one, of R
  int64_t pass = 0, passes = 1;
  int64_t part_rows = 0;  // that a rank may send to another; 0: no bound
  // If rows travel by hosts of R / H consecutive ranks each (moe/dispatchers/host_dispatch.h), a rank forwards the rows
  // from the ranks at its position on every host: part_rows bounds these together, and send_rows the rows for all ranks
  // of its host. `copies`: the most tokens that a rank may send to a host. 0: no bound.
  int64_t hosts = 1, send_rows = 0, copies = 0;
};

struct SentAssignments {
  Tensor ids;     // [n] int32: expert of each of this rank's assignments; -1: it has no row
  Tensor counts;  // [E] int64: the histogram of ids
};

// counts [R, E] int64: assignments of each rank to each expert, E / R consecutive experts on each rank; if `copies`
// bounds them, [R, E + H]: followed by the tokens of each rank that visit each host. ids [n] int32: assignments of this
// rank. If all bounds hold for the pass, `sent` becomes this rank's assignments to the pass's experts; otherwise it
// becomes empty, on all ranks. fill [1] float64 becomes the largest of itself and the ratios of rows (or tokens) to
// their bound, and is above 1 if they do not fit.
void limit_to_buffer(Stream& stream, const SentAssignments& sent, const Tensor& fill, const Tensor& ids,
                     const Tensor& counts, const PassBounds& bounds);
WITAN_KERNEL_TWINS(limit_to_buffer)

// index[i] = i;  int64
void number_rows(Stream& stream, const Tensor& index);
WITAN_KERNEL_TWINS(number_rows)

// If fill [1] is above 1, step.skip (step_report.h) becomes fill: the step has left out rows that did not fit. A skip
// of exactly 1 means that gradients were not finite.
void skip_overflow(Stream& stream, const Tensor& step, const Tensor& fill);
WITAN_KERNEL_TWINS(skip_overflow)

}  // namespace witan::kernels
