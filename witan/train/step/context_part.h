// A rank's part of micro-batches whose sequences are divided among the ranks of the context axis.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/data/batch.h"

namespace witan {

// Of each batch [B, S] the columns [B, S / n] at context_positions() of this rank of the group. Throws ConfigError
// unless 2 n divides S.
std::vector<Batch> context_part(const std::vector<Batch>& batches, const Group& context);

}  // namespace witan
