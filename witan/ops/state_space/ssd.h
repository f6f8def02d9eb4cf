// Mamba-2 (Dao & Gu, 2024, arXiv:2405.21060): steps and decays, the recurrence, and a norm in groups with a gate.
// Mathematics in kernels/state_space. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/state_space/ssd.h"

namespace witan::ops {

// The step of each head, and the logarithm of its decay, in the accumulator dtype.
struct SsdGates {
  Var dt, a;
};
// raw [.., H], A_log, dt_bias [H] in the accumulator dtype -> [.., H]. Steps are at least `least`.
SsdGates ssd_gates(Tape& tape, const Var& raw, const Var& A_log, const Var& dt_bias, double least);

// xbc [B, S, H P + 2 G N], gates [B, S, H], D [H] in the accumulator dtype -> [B, S, H P]. sequence_ids [B, S] int32
// keeps documents apart; undefined: each row is one document. The backward keeps xbc and the gates. Without tensor cores
// a GPU's output has the bits that generation continues with (kernels::SsdInputs::first).
Var ssd(Tape& tape, const Var& xbc, const SsdGates& gates, const Var& D, const Tensor& sequence_ids,
        const kernels::SsdHeads& heads, bool tensor_cores = true);

// x, z [.., D], w [D] in the accumulator dtype -> x silu(z), normalised in `groups` equal groups of channels, times w
Var gated_group_rmsnorm(Tape& tape, const Var& x, const Var& z, const Var& w, int64_t groups, double eps);

}  // namespace witan::ops
