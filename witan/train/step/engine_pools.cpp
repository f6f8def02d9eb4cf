// Steps in which rows of experts have no room, in pools or in what ranks send each other (moe/expert_pools.h): what is
// bounded, and how such a step is made again.
#include "witan/kernels/common/step_value.h"
#include "witan/moe/dispatch.h"
#include "witan/moe/replicas.h"
#include "witan/tensor/trace_context.h"
#include "witan/train/step/engine.h"

namespace witan {

// Whether experts' rows go straight to other ranks' memory, all the way.
bool Engine::rows_go_by_peers() const {
  return !groups_.layout().has_expert_hosts() &&
         witan::rows_go_by_peers(groups_.of(Axis::expert), config_->model.moe.num_experts);
}

std::unique_ptr<ExpertPools> Engine::make_pools() const {
  const MoeConfig& moe = config_->model.moe;
  if (moe.num_experts == 0 || groups_.of(Axis::expert).size() == 1) return nullptr;
  const double exchange_factor = rows_go_by_peers() ? 0 : moe.moe_exchange_factor;
  if (moe.moe_pool_factor == 0 && exchange_factor == 0) return nullptr;
  return std::make_unique<ExpertPools>(stream_, moe.moe_pool_factor, exchange_factor);
}

// A step that left out rows of experts has updated nothing: it is made again, with rows exchanged as they come, in more
// waves until each has room, as one of a single expert always has.
StepResult Engine::within_pools(const std::vector<Batch>& own, Count count, StepReport::Result read) {
  const bool in_parts = pools_ && pools_->in_parts();
  const double first_fill = read.step[kernels::step_value::skip];
  int64_t waves = 1;
  for (const int64_t more : wave_counts()) {
    const double fill = read.step[kernels::step_value::skip];  // of what was computed last
    if (fill <= 1) break;
    if (more == 1 && !in_parts) continue;  // it was that
    // Too few, whatever they divide. What one wave does for parts, their fill does not say.
    if (more > 1 && static_cast<double>(more) < fill && more < wave_counts().back()) continue;
    waves = more;
    read = compute_again(own, count, waves);
  }
  if (read.step[kernels::step_value::skip] > 1)
    throw Error(ExitCode::internal, cat("a step in ", waves, " waves left out rows of experts"));
  StepResult result = result_of(read);
  result.waves = waves;
  if (in_parts && first_fill > 1 && waves == 1) result.exchange_fill = first_fill;
  if (bounds_exchanges()) in_parts ? exchange_backoff_.tried(first_fill > 1) : exchange_backoff_.waited();
  if (pools_) pools_->restore();
  return result;
}

std::vector<int64_t> Engine::wave_counts() const {
  std::vector<int64_t> counts;
  if (!pools_) return counts;
  if (pools_->bounds_exchanges()) counts.push_back(1);
  if (!pools_->bounds_pools()) return counts;
  const MoeConfig& moe = config_->model.moe;
  const int64_t ranks = groups_.of(Axis::expert).size();
  const int64_t experts = moe.num_experts / ranks + replica_slots(moe, ranks);
  for (int64_t waves = 2; waves < experts; waves *= 2) counts.push_back(waves);
  if (experts > 1) counts.push_back(experts);
  return counts;
}

StepReport::Result Engine::compute_again(const std::vector<Batch>& own, Count count, int64_t waves) {
  buffer_sums_.undo_step(stream_);
  begin(own, count);
  pools_->divide(waves);
  compute(Mode::again, {});
  pools_->restore();
  return report_->read(stream_, measures());
}

void Engine::step_again(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates, int64_t waves) {
  const TraceContextScope trace_context(stream_);
  trace_context->step = iteration;
  look_ahead_of(micro_batches);
  compute_again(own_part(micro_batches), {iteration, updates}, waves);
}

}  // namespace witan
