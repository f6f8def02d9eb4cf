// The samples of a step, split into micro-batches of any size.
#pragma once

#include <vector>

#include "train/step/run_support.h"

namespace witan::testing {

inline void append(Batch& to, const Batch& sample) {
  const auto join = [](auto& all, const auto& more) { all.insert(all.end(), more.begin(), more.end()); };
  to.sequences += sample.sequences;
  to.sequence_length = sample.sequence_length;
  to.loss_tokens += sample.loss_tokens;
  join(to.tokens, sample.tokens);
  join(to.targets, sample.targets);
  join(to.positions, sample.positions);
  join(to.sequence_ids, sample.sequence_ids);
  join(to.loss_mask, sample.loss_mask);
}

// For run_engine: sample i of a step is independent of the micro-batch size.
inline std::vector<Batch> recut(const RunConfig& config, const Layout& layout, int rank, int64_t step) {
  RunConfig single = config;
  single.train.micro_batch_size = 1;
  const std::vector<Batch> samples = own_batches(single, layout, rank, step);
  const auto size = static_cast<size_t>(config.train.micro_batch_size);
  std::vector<Batch> batches(samples.size() / size);
  for (size_t i = 0; i < samples.size(); ++i) append(batches[i / size], samples[i]);
  return batches;
}

}  // namespace witan::testing
