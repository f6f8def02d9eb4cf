// What modules of multi-token prediction are given (DeepSeek-V3, arXiv:2412.19437, section 2.2): the tokens that follow
// those of a batch, and the targets behind them.
#pragma once

#include "witan/data/batches/batch.h"

namespace witan {

// The batch as it is k >= 1 positions further on: place i of a row has the token, position, target, loss mask and
// columns of place i + k. Where that is beyond the row, or in another document (sequence_ids), these are 0, so that
// nothing is predicted across the end of either. sequence_ids stay those of the batch: they say what attention sees. A
// batch with sizes only gives another one of the same kind. (Megatron-LM's roll_tensor.)
Batch look_ahead(const Batch& batch, int64_t k);

}  // namespace witan
