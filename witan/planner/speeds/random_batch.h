// A micro-batch of uniformly random tokens, so that routing is nearly balanced.
#pragma once

#include "witan/base/numbers/rng.h"
#include "witan/train/step/objective.h"

namespace witan {

inline Batch random_batch(const RunConfig& config, uint64_t number) {
  Batch batch = sized_batch(config);
  const auto tokens = static_cast<size_t>(batch.loss_tokens);
  const Philox rng(1, number);
  const auto vocabulary = static_cast<uint64_t>(config.model.vocab_size);
  for (size_t i = 0; i < tokens; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(rng.below(vocabulary, i)));
    batch.targets.push_back(static_cast<int32_t>(rng.below(vocabulary, i + 1)));
    batch.positions.push_back(static_cast<int32_t>(i % static_cast<size_t>(batch.sequence_length)));
  }
  batch.sequence_ids.assign(tokens, 0);
  batch.loss_mask.assign(tokens, 1.0f);
  for (auto& [column, values] : batch.columns)
    values.assign(column.per == ColumnSpec::Per::token ? tokens : static_cast<size_t>(batch.sequences), 1.0f);
  return batch;
}

}  // namespace witan
