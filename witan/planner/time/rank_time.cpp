#include "witan/planner/time/rank_time.h"

#include <algorithm>
#include <numeric>

#include "witan/optim/param_groups.h"

namespace witan {
namespace {

using Phase = TraceContext::Phase;

// Latency of a call between hosts, added to that within one: two adapters and a switch.
constexpr double kNetworkCall = 1e-5;

// The share of the host link's rate that copies of pinned memory reach.
constexpr double kReachedHostLink = 0.8;

// Whether an optimizer multiplies in float32 or wider, whatever the model's dtype.
bool has_wide_products(const OptimizerConfig& config) {
  const ParamGroups groups(config);
  return std::ranges::any_of(groups.all(), [](const ParamGroup& group) {
    return group.settings.optimizer == "shampoo" || group.settings.optimizer == "soap";
  });
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

bool is_transfer(const CallKind& kind) {
  return kind.group == name_of(Axis::pipeline) && (kind.name == "send" || kind.name == "recv");
}

GpuClock::GpuClock(const Plan& plan, const RunConfig& config, const GpuSpeeds& speeds, const Cluster& cluster,
                   double f32_flops)
    : plan_(plan),
      config_(config),
      speeds_(speeds),
      cluster_(cluster),
      wide_flops_(has_wide_products(config.optimizer) ? f32_flops : 0),
      layout_(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts) {}

RankTime GpuClock::time_of(const RankPlan& rank) const {
  const LinkClock links(cluster_, layout_, rank.rank);
  const auto micro_batches = static_cast<double>(std::max<int64_t>(plan_.micro_batches, 1));
  const auto chunks = static_cast<size_t>(std::max<int64_t>(config_.parallel.num_virtual_stages_per_pipeline_rank, 1));
  RankTime time;
  time.passes = {std::vector<double>(chunks), std::vector<double>(chunks)};
  Beside forward, backward, between;
  for (const auto& [kind, cost] : rank.calls) {
    const double seconds = seconds_of(links, kind, cost);
    if (is_transfer(kind)) {
      time.transfer = std::max(time.transfer, seconds / cost.calls);
      time.transfers += seconds;
      continue;
    }
    const bool is_forward = kind.phase == Phase::forward, is_backward = kind.phase == Phase::backward;
    if (kind.beside) {
      Beside& to = is_forward ? forward : is_backward ? backward : between;
      to.seconds += seconds;
      to.calls += cost.calls;
      continue;
    }
    time.parts[kind.group.empty() ? kind.part : "exchange"] += seconds;
    const auto chunk = std::min(static_cast<size_t>(kind.chunk), chunks - 1);
    (is_forward    ? time.passes.forward[chunk]
     : is_backward ? time.passes.backward[chunk]
                   : time.rest) += seconds / (is_forward || is_backward ? micro_batches : 1);
  }
  const bool sharded = layout_.shards_gradients(false) || layout_.shards_gradients(true);
  const double forwards = micro_batches * sum_of(time.passes.forward),
               backwards = (sharded ? micro_batches : 1) * sum_of(time.passes.backward);
  hide(forward, forwards, time.passes.forward, time);
  hide(backward, backwards, time.passes.backward, time);
  time.rest += between.seconds;
  if (between.seconds > 0) time.parts["exchange"] += between.seconds;
  wait_for_host(rank, time);
  return time;
}

// Inputs of blocks leave beside the forward of the others, and return beside their backward: what takes longer than the
// pass is waited for.
void GpuClock::wait_for_host(const RankPlan& rank, RankTime& time) const {
  const auto micro_batches = static_cast<double>(std::max<int64_t>(plan_.micro_batches, 1));
  for (size_t chunk = 0; chunk < std::min(rank.offloaded.size(), time.passes.forward.size()); ++chunk) {
    const double moving = rank.offloaded[chunk] / (kReachedHostLink * cluster_.gpu.host_bytes_s);
    for (std::vector<double>* const passes : {&time.passes.forward, &time.passes.backward}) {
      const double waited = std::max(moving - (*passes)[chunk], 0.0);
      if (waited == 0) continue;
      (*passes)[chunk] += waited;
      time.parts["offload"] += waited * micro_batches;
    }
  }
}

// The first gather and the last reduction have nothing to hide behind, so that one call's time is always waited for.
void GpuClock::hide(const Beside& beside, double behind, std::vector<double>& passes, RankTime& time) const {
  if (beside.seconds == 0) return;
  const double waited = std::max(beside.seconds - behind, 0.0) + beside.seconds / beside.calls;
  const double slowed = speeds_.beside * std::min(beside.seconds, behind);
  time.rest += waited;
  time.parts["exchange"] += waited + slowed;
  const double all = sum_of(passes);
  if (all == 0) return;
  const double micro_batches = static_cast<double>(std::max<int64_t>(plan_.micro_batches, 1));
  for (double& seconds : passes) seconds *= 1 + slowed / (all * micro_batches);
}

double GpuClock::evaluation_seconds(const RankPlan& rank) const {
  const LinkClock links(cluster_, layout_, rank.rank);
  double sum = 0;
  for (const auto& [kind, cost] : rank.eval_calls) sum += seconds_of(links, kind, cost);
  return sum;
}

double GpuClock::seconds_of(const LinkClock& links, const CallKind& kind, const Cost& cost) const {
  if (!kind.group.empty()) return exchange_seconds(links, kind, cost);
  const double seconds = speeds_.kernel_seconds(kind, cost);
  return wide_flops_ > 0 && kind.part == "optimizer" ? std::max(seconds, cost.flops / wide_flops_) : seconds;
}

double GpuClock::exchange_seconds(const LinkClock& links, const CallKind& kind, const Cost& cost) const {
  if (kind.name == "recv") return 0;  // the sender is charged
  const ExchangeSpeed& speed = speeds_.exchange(kind.name);
  const double fixed =
      cost.calls * (speed.call + speed.rank * static_cast<double>(std::max<int64_t>(kind.shape.n - 2, 0)));
  if (!links.within_host(kind.group))
    return fixed + cost.calls * kNetworkCall + links.seconds(kind.group, kind.name, cost.bytes);
  const double rate = speed.bytes * cluster_.link_bytes_s / cluster_.gpu.link_bytes_s;
  return fixed + (rate > 0 ? cost.bytes / rate : 0);
}

}  // namespace witan
