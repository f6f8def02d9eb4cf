// Selects a context-parallel rank's part of the sequences of a micro-batch.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/data/batches/batch.h"

namespace witan {

// Of each batch [B, S] the places [B, S / n] at context_positions() of this rank of the group. Throws ConfigError
// unless 2 n divides S.
std::vector<Batch> context_part(const std::vector<Batch>& batches, const Group& context);

}  // namespace witan
