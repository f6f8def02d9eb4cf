#include "witan/train/step/features/activation_offload.h"

#include <algorithm>

#include "witan/parallel/schedule.h"
#include "witan/parallel/stages.h"

namespace witan {

OffloadedInputs::OffloadedInputs(const RunConfig& config, int stage, int64_t micro_batches, int64_t tokens) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t ranks = parallel.sequence_parallel ? parallel.tensor_model_parallel_size : 1;
  bytes = tokens / ranks * config.model.residual_width() * static_cast<int64_t>(size_of(config.model.compute_dtype()));
  const Stages stages(parallel.stage_split(config.model.num_layers));
  for (const LayerRange& chunk : stages.held_by(stage).chunks)
    inputs.push_back(chunk.size() - (chunk.contains(config.model.num_layers - 1) ? 1 : 0));
  int64_t now = 0;
  for (const Work& work : schedule_of({stages.stages(), stages.chunks(), micro_batches}, stage)) {
    const int64_t moved = inputs[static_cast<size_t>(work.chunk)];
    now += work.pass == Work::Pass::forward ? moved : -moved;
    most = std::max(most, now);
  }
}

void ActivationOffload::allocate(const StepShape& shape) {
  store_.reserve(
      OffloadedInputs(config_, groups_.of(Axis::pipeline).rank(), shape.micro_batches, shape.tokens).host_bytes());
}

void ActivationOffload::begin_pass(Pass pass, int64_t /*micro_batch*/) {
  forward_ = pass == Pass::forward;
  if (forward_) store_.begin_pass();
}

void ActivationOffload::end_pass() {
  if (forward_) store_.end_pass();
}

}  // namespace witan
