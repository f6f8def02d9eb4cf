#include "witan/train/step/features/state_checks.h"

#include "witan/tensor/trace_context.h"

namespace witan {

StateChecks::StateChecks(const StepParts& parts)
    : stream_(parts.stream),
      units_(parts.units),
      shards_(parts.shards),
      optimizer_(parts.optimizer),
      check_(parts.model.parameters(), parts.groups, parts.model.buffers()),
      every_step_(parts.config.train.check_states) {
  if (every_step_) check_.after_init(stream_, &units_);
}

void StateChecks::check() {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::optimizer);
  if (!units_.gathered()) units_.gather();
  stream_.wait();  // the checks read values by other means than this stream
  check_.after_update(stream_, optimizer_);
}

void StateChecks::after_passes() {
  if (every_step_) check_.after_reduction(stream_, shards_.local_shards());
}

void StateChecks::report(const StepReport::Result& /*read*/, StepResult& /*result*/) {
  if (!every_step_) return;
  const TraceContextScope trace_context(stream_, TraceContext::Phase::optimizer);
  const std::string before = stream_.set_part("optimizer");
  units_.gather();
  check_.after_update(stream_, optimizer_);
  check_.experts_after_update(stream_, &units_);
  stream_.set_part(before);
}

}  // namespace witan
