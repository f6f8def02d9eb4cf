// Who updates what.
#pragma once

#include <vector>

#include "witan/optim/optimizer.h"

namespace witan {

// Every rank updates all that it holds, replicas alike: gradients are identical on them, and so the updates are.
std::vector<Owned> own_all(const std::vector<Parameter*>& parameters);

}  // namespace witan
