// Memory for time (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Kernels are deterministic, so
// what is computed again has the same bits.
#pragma once

#include <functional>
#include <vector>

#include "witan/autograd/tape.h"

namespace witan {

// Full recompute: a segment keeps its inputs alone and runs again, with a tape of its own, when backward reaches it.
// segment(tape, inputs) must use `tape` and these inputs alone (parameters aside) and have no side effects: whatever it
// wants to tell (router statistics, say) it returns. The values returned are those of the first run. On a disabled tape
// it simply runs.
std::vector<Var> recomputed(Tape& tape, const std::vector<Var>& inputs,
                            const std::function<std::vector<Var>(Tape&, const std::vector<Var>&)>& segment);

// Selective recompute: op(tape, inputs), whose output later ops do not keep: they compute it again from the inputs. For
// cheap ops with large outputs (norms, activations); the op's own backward still keeps what it saves.
Var rematerialised(Tape& tape, const std::vector<Var>& inputs,
                   const std::function<Var(Tape&, const std::vector<Var>&)>& op);

}  // namespace witan
