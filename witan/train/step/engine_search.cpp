// Computations that are made again to find why a step went wrong: values that are not finite, passes of other ranks.
#include "witan/tensor/trace_context.h"
#include "witan/train/step/engine.h"

namespace witan {

std::vector<std::string> Engine::non_finite_values() {
  stream_.wait();
  std::vector<std::string> found;
  for (const Parameter* parameter : parameters_)
    if (const auto text = describe_non_finite(*parameter, parameter->value_shard(), parameter->shard_first()))
      found.push_back(*text);
  return found;
}

std::vector<std::string> Engine::non_finite_gradients() {
  stream_.wait();
  std::vector<std::string> found;
  for (const auto& [parameter, first, elements, pieces] : shard_plan_.local_shards())
    if (const auto text = describe_non_finite(*parameter, parameter->gradient_shard(first, elements), first))
      found.push_back(*text);
  return found;
}

std::optional<NonFiniteSearch::Found> Engine::find_non_finite(const std::vector<Batch>& micro_batches,
                                                              int64_t iteration, int64_t updates,
                                                              const StepResult& result) {
  const TraceContextScope trace_context(stream_);
  trace_context->step = iteration;
  look_ahead_of(micro_batches);
  features_.call(&StepFeature::begin_again, result);
  begin(own_part(micro_batches), {iteration, updates});
  KernelObserver* const before = stream_.observer();
  NonFiniteSearch search;
  stream_.observe(&search);
  try {
    compute_passes(Mode::again);
    stream_.wait();
  } catch (...) {
    stream_.observe(before);
    throw;
  }
  stream_.observe(before);
  features_.call(&StepFeature::end_again);
  return search.found();
}

void Engine::replay_passes(const std::vector<Batch>& micro_batches, int data_rank, int64_t iteration, int64_t updates) {
  const TraceContextScope trace_context(stream_);
  trace_context->step = iteration;
  look_ahead_of(micro_batches);
  const std::vector<Batch>& own = own_part(micro_batches);
  prepare(own);
  begin(own, {iteration, updates});
  passes_.compute_as(data_rank);
  compute_passes(Mode::again);
  passes_.compute_as(groups_.layout().data_rank(groups_.rank()));
}

}  // namespace witan
