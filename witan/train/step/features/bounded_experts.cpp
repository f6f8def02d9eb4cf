#include "witan/train/step/features/bounded_experts.h"

#include "witan/base/error.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/receive_buffer.h"
#include "witan/moe/dispatchers/dispatch.h"
#include "witan/moe/dispatchers/replicas.h"

namespace witan {
namespace {

double exchange_factor(const Groups& groups, const MoeConfig& moe) {
  return counts_stay_on_device(groups, moe) ? 0 : moe.moe_exchange_factor;
}

}  // namespace

bool counts_stay_on_device(const Groups& groups, const MoeConfig& moe) {
  if (groups.layout().has_expert_hosts()) return false;
  return groups.experts_access() == PeerAccess::host || rows_go_by_peers(groups.of(Axis::expert), moe.num_experts);
}

bool BoundedExperts::bounds(const Groups& groups, const MoeConfig& moe) {
  if (moe.num_experts == 0 || groups.of(Axis::expert).size() == 1) return false;
  return moe.moe_pool_factor > 0 || exchange_factor(groups, moe) > 0;
}

BoundedExperts::BoundedExperts(Stream& stream, const Groups& groups, const MoeConfig& moe, const StepState& state)
    : stream_(stream),
      groups_(groups),
      moe_(moe),
      state_(state),
      receive_buffers_(stream, moe.moe_pool_factor, exchange_factor(groups, moe)) {}

std::vector<int64_t> BoundedExperts::pass_counts() const {
  std::vector<int64_t> counts;
  if (receive_buffers_.bounds_exchanges()) counts.push_back(1);
  if (!receive_buffers_.bounds_buffers()) return counts;
  const int64_t ranks = groups_.of(Axis::expert).size();
  const int64_t experts = moe_.num_experts / ranks + replica_slots(moe_, ranks);
  for (int64_t passes = 2; passes < experts; passes *= 2) counts.push_back(passes);
  if (experts > 1) counts.push_back(experts);
  return counts;
}

std::vector<StepResult> BoundedExperts::repetitions() const {
  std::vector<StepResult> ways;
  for (const int64_t passes : pass_counts()) ways.emplace_back().passes = passes;
  return ways;
}

void BoundedExperts::start_over() {
  passes_.reset();
  first_.reset();
  receive_buffers_.restore();
}

void BoundedExperts::before_step(int64_t /*iteration*/) {
  if (passes_)
    receive_buffers_.divide(*passes_);
  else if (backoff_.waits())
    receive_buffers_.divide(1);
  else
    receive_buffers_.restore();
}

void BoundedExperts::before_update(const Tensor& /*total*/) {
  groups_.world().all_reduce(stream_, receive_buffers_.fill(), Reduce::max);
  kernels::skip_overflow(stream_, state_.tensor(), receive_buffers_.fill());
}

bool BoundedExperts::repeats(const StepReport::Result& read) {
  const double fill = read.step[kernels::step_value::skip];  // of the last computation
  if (!first_) first_ = {receive_buffers_.in_parts(), fill};
  if (fill <= 1) return false;
  const std::vector<int64_t> counts = pass_counts();
  for (const int64_t more : counts) {
    if (passes_ && more <= *passes_) continue;     // tried already
    if (more == 1 && !first_->in_parts) continue;  // tried by the first computation
    // Too few passes cannot have room, however rows are divided. The fill of parts says nothing about a single pass.
    if (more > 1 && static_cast<double>(more) < fill && more < counts.back()) continue;
    passes_ = more;
    return true;
  }
  throw Error(ExitCode::internal, cat("a step in ", passes_.value_or(1), " passes left out rows of experts"));
}

void BoundedExperts::report(const StepReport::Result& /*read*/, StepResult& result) {
  result.passes = passes_.value_or(1);
  const auto [in_parts, fill] = *first_;
  if (in_parts && fill > 1 && result.passes == 1) result.exchange_fill = fill;
  if (receive_buffers_.bounds_exchanges()) in_parts ? backoff_.tried(fill > 1) : backoff_.waited();
  start_over();
}

}  // namespace witan
