// Recomputation, which trades time for memory (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
// Kernels are deterministic, so recomputed values have the same bits.
#pragma once

#include <functional>
#include <vector>

#include "witan/autograd/tape.h"

namespace witan {

class OffloadStore;  // autograd/offload_store.h

// The store that takes a segment's first input until its backward.
struct Offload {
  OffloadStore* store = nullptr;  // null: the input stays where it is
  bool leaves = true;             // false: it stays, since its backward comes first
};

// Full recomputation: a segment saves only its inputs and runs again, with its own tape, when backward reaches it.
// segment(tape, inputs) must use only `tape` and these inputs (and parameters) and have no side effects: anything else
// that it computes (for example router statistics) must be returned, except for losses, which Tape::add_loss() hands
// on. The values returned are those of the first run. On a disabled tape it simply runs.
std::vector<Var> recomputed(Tape& tape, const std::vector<Var>& inputs,
                            const std::function<std::vector<Var>(Tape&, const std::vector<Var>&)>& segment,
                            Offload offload = {});

// Like recomputed(), but later ops do not keep the segment's outputs either: the first backward that needs one of them
// runs the segment again, once, for all of them and for the segment's own backward, which comes later. It pays for
// segments whose inputs are small compared with their outputs, since from then on the outputs and the values that the
// segment's backward needs are in memory together.
std::vector<Var> recomputed_when_needed(Tape& tape, const std::vector<Var>& inputs,
                                        const std::function<std::vector<Var>(Tape&, const std::vector<Var>&)>& segment);

// Selective recomputation of op(tape, inputs): later ops do not save its output but recompute it from the inputs. For
// cheap ops with large outputs (norms, activations); the op's own backward still saves what it needs.
Var rematerialised(Tape& tape, const std::vector<Var>& inputs,
                   const std::function<Var(Tape&, const std::vector<Var>&)>& op);

}  // namespace witan
