#include "witan/data/batches/ahead.h"

#include <algorithm>
#include <cassert>

namespace witan {

Batch look_ahead(const Batch& batch, int64_t k) {
  assert(k >= 1);
  Batch ahead = batch;
  if (batch.tokens.empty()) return ahead;
  const auto length = static_cast<size_t>(batch.sequence_length), by = static_cast<size_t>(k);
  const auto is_there = [&](size_t i) {
    return i % length + by < length && batch.sequence_ids[i + by] == batch.sequence_ids[i];
  };
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const size_t from = i + by;
    const bool there = is_there(i);
    ahead.tokens[i] = there ? batch.tokens[from] : 0;
    ahead.positions[i] = there ? batch.positions[from] : 0;
    ahead.targets[i] = there ? batch.targets[from] : 0;
    ahead.loss_mask[i] = there ? batch.loss_mask[from] : 0;
  }
  for (size_t c = 0; c < batch.columns.size(); ++c) {
    if (batch.columns[c].spec.per != ColumnSpec::Per::token) continue;
    for (size_t i = 0; i < batch.tokens.size(); ++i)
      ahead.columns[c].values[i] = is_there(i) ? batch.columns[c].values[i + by] : 0;
  }
  ahead.count_loss_tokens();
  return ahead;
}

}  // namespace witan
