// Batches of runs whose global batch grows (rampup_batch_size).
#pragma once

#include <vector>

#include "train/step/run_support.h"
#include "witan/data/batches/batch_ramp.h"

namespace witan::testing {

// A rank's micro-batches of a step, numbered through all steps.
inline std::vector<Batch> ramped_batches(const RunConfig& config, const Layout& layout, int rank, int64_t step) {
  const BatchRamp ramp = config.batch_ramp();
  const int64_t size = config.train.micro_batch_size, consumed = ramp.consumed_by(step);
  const int64_t own = ramp.size(consumed) / size / layout.data_ranks();
  std::vector<Batch> batches;
  for (int64_t i = 0; i < own; ++i)
    batches.push_back(random_batch(config, consumed / size + layout.data_rank(rank) * own + i));
  return batches;
}

}  // namespace witan::testing
