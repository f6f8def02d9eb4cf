// The tensors of a checkpoint that a rank holds.
#pragma once

#include <vector>

#include "witan/checkpoint/state.h"
#include "witan/nn/buffer.h"
#include "witan/optim/optimizer.h"
#include "witan/parallel/groups.h"

namespace witan {

// Values, buffers, then optimizer state. Of ranks that hold the same tensor, the first writes it. All values must have
// been gathered.
std::vector<StateTensor> checkpoint_tensors(const std::vector<Parameter*>& parameters,
                                            const std::vector<Buffer*>& buffers, Optimizer& optimizer,
                                            const Groups& groups);

}  // namespace witan
