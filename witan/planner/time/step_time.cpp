#include "witan/planner/time/step_time.h"

#include <algorithm>
#include <string>

#include "witan/optim/param_groups.h"
#include "witan/planner/speeds/cluster.h"
#include "witan/planner/time/rank_time.h"

namespace witan {
namespace {

// The share of a thread's multiply-adds that LAPACK reaches when it decomposes a matrix.
constexpr double kLapackShare = 0.08;

// The kernels of the run's optimizers that decompose matrices in LAPACK.
struct MatrixWork {
  explicit MatrixWork(const RunConfig& config) {
    const ParamGroups groups(config.optimizer);
    for (const ParamGroup& group : groups.all())
      eigen = eigen || (group.settings.optimizer == "shampoo" && group.settings.shampoo_root == "eigen");
  }
  bool by_lapack(const std::string& kernel) const {
    return kernel == "renew_basis" || (kernel == "inverse_root" && eigen);
  }

  bool eigen = false;  // Shampoo computes its roots from eigenvectors
};

// The time of a rank's kernels and exchanges on a CPU, with cores of its own.
class RankClock {
 public:
  RankClock(const Ceilings& ceilings, const RunConfig& config) : ceilings_(ceilings), work_(config) {
    flops_ = ceilings.fma_flops / ceilings.load.ranks;
    for (const auto& [kernel, cost] : ceilings.kernels) all_ += cost;
  }

  double lapack(const Cost& cost) const { return cost.flops * ceilings_.load.threads / (kLapackShare * flops_); }
  bool by_lapack(const std::string& name) const { return ceilings_.load.gpu.empty() && work_.by_lapack(name); }

  double kernel(const std::string& name, const Cost& cost) const {
    if (by_lapack(name)) return lapack(cost);
    const auto found = ceilings_.kernels.find(name);
    const Cost& measured = found != ceilings_.kernels.end() && found->second.seconds > 0 ? found->second : all_;
    // The kernel is bound by the one of the two whose ceiling it came closer to.
    const double of_flops = measured.flops / measured.seconds / flops_;
    const double of_bytes = measured.bytes / measured.seconds / ceilings_.copy_bytes;
    return of_flops > of_bytes ? cost.flops * measured.seconds / measured.flops
                               : cost.bytes * measured.seconds / measured.bytes;
  }

  // Seconds of kernels, by part. `calls` are more precise than their sums if calls were measured.
  double parts(const KernelCosts& sums, const CallCosts& calls, std::map<std::string, double>& parts) const {
    double all = 0;
    const auto add = [&](const std::string& part, double seconds) {
      parts[part] += seconds;
      all += seconds;
    };
    if (by_call(calls)) {
      for (const auto& [kind, cost] : calls)
        if (kind.group.empty()) add(kind.part, kernel_call(kind, cost));
    } else {
      for (const auto& [part, kernels] : sums)
        for (const auto& [name, cost] : kernels) add(part, kernel(name, cost) * (1 + ceilings_.between));
    }
    return all;
  }

  double exchange(const SentBytes& sent, const CallCosts& calls) const {
    double sum = 0;
    for (const auto& [axis, operations] : sent)
      for (const auto& [operation, bytes] : operations) sum += exchange(operation, bytes, 0);
    for (const auto& [kind, cost] : calls)
      if (!kind.group.empty()) sum += exchange(kind.name, 0, cost.calls);
    return sum;
  }

  // Everything in a step outside the passes of a pipeline stage counts as rest; without a pipeline the distinction does
  // not matter.
  RankTime time_of(const RankPlan& rank, int64_t micro_batches) const {
    RankTime time;
    time.rest = parts(rank.step, rank.calls, time.parts);
    const double exchanging = exchange(rank.sent, rank.calls);
    if (exchanging > 0) time.parts["exchange"] = exchanging;
    time.rest += exchanging;
    for (const auto& [kind, cost] : rank.calls) {
      const bool is_forward = kind.phase == TraceContext::Phase::forward;
      if (!is_forward && kind.phase != TraceContext::Phase::backward) continue;
      const double seconds = kind.group.empty() ? kernel_call(kind, cost) : exchange(kind.name, cost.bytes, cost.calls);
      time.rest -= seconds;
      if (is_transfer(kind)) {
        time.transfer = std::max(time.transfer, seconds / cost.calls);
        continue;
      }
      auto& passes = is_forward ? time.passes.forward : time.passes.backward;
      passes.resize(std::max(passes.size(), static_cast<size_t>(kind.chunk) + 1));
      passes[static_cast<size_t>(kind.chunk)] += seconds / static_cast<double>(micro_batches);
    }
    const size_t chunks = std::max(time.passes.forward.size(), time.passes.backward.size());
    time.passes.forward.resize(chunks);
    time.passes.backward.resize(chunks);
    return time;
  }

 private:
  bool by_call(const CallCosts& calls) const { return !ceilings_.calls.kernels.empty() && !calls.empty(); }

  // Seconds of kernels of one kind, including the gaps between calls.
  double kernel_call(const CallKind& kind, const Cost& cost) const {
    const auto measured = by_lapack(kind.name) ? std::nullopt : ceilings_.calls.kernel_seconds(kind, cost);
    const double seconds = measured ? *measured : kernel(kind.name, cost);
    return seconds + std::max(seconds * ceilings_.between, cost.calls * ceilings_.calls.between_call);
  }
  double exchange(const std::string& operation, double bytes, double calls) const {
    const auto rate = ceilings_.exchange.find(operation == "all_reduce" ? operation : "all_to_all_equal");
    return (rate != ceilings_.exchange.end() ? bytes / rate->second : 0) + calls * ceilings_.calls.exchange_call;
  }

  const Ceilings& ceilings_;
  const MatrixWork work_;
  double flops_ = 0;
  Cost all_;
};

// Combines the times of a plan's ranks.
class StagesOfPlan {
 public:
  StagesOfPlan(const Plan& plan, const RunConfig& config)
      : plan_(plan),
        layout_(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts),
        pipeline_{static_cast<int>(plan.stages.size()),
                  static_cast<int>(std::max<int64_t>(config.parallel.num_virtual_stages_per_pipeline_rank, 1)),
                  std::max<int64_t>(plan.micro_batches, 1)} {}

  // The step of the rank that takes longest on its own, plus what it waits for. `times`: one for each of the plan's
  // ranks.
  StepTime play(const std::vector<RankTime>& times) const {
    const auto micro_batches = static_cast<double>(pipeline_.micro_batches);
    const auto alone = [&](const RankTime& time) { return micro_batches * time.passes.of_all_chunks() + time.rest; };
    const RankTime* slowest = &times.front();
    double rest = 0, transfer = 0;
    for (const RankTime& time : times) {
      if (alone(time) > alone(*slowest)) slowest = &time;
      rest = std::max(rest, time.rest);
      transfer = std::max(transfer, time.transfer);
    }
    StepTime step;
    step.parts = slowest->parts;
    step.seconds = alone(*slowest);
    if (pipeline_.stages <= 1) {  // or stages that are not simulated, whose transfers are waited for
      step.seconds += slowest->transfers;
      if (slowest->transfers > 0) step.parts["exchange"] += slowest->transfers;
      return step;
    }
    step.seconds = play_pipeline(pipeline_, passes_of_stages(times), transfer).seconds + rest;
    step.parts["bubble"] = std::max(step.seconds - alone(*slowest), 0.0);
    return step;
  }

 private:
  // The passes of each stage's slowest rank; a stage without a planned rank is assumed to be like the first.
  std::vector<StagePassTimes> passes_of_stages(const std::vector<RankTime>& times) const {
    std::vector<StagePassTimes> passes(static_cast<size_t>(pipeline_.stages));
    for (size_t i = 0; i < times.size(); ++i) {
      const int stage = layout_.mesh().coordinate(plan_.ranks[i].rank, Axis::pipeline);
      StagePassTimes& known = passes[static_cast<size_t>(stage)];
      if (times[i].passes.of_all_chunks() > known.of_all_chunks()) known = times[i].passes;
    }
    for (StagePassTimes& stage : passes)
      if (stage.forward.empty()) stage = passes.front();
    return passes;
  }

  const Plan& plan_;
  const Layout layout_;
  const Pipeline pipeline_;
};

// Predicts from calls, which are more precise than sums by kernel.
StepTime predict_on_gpus(const Plan& plan, const RunConfig& config, const Ceilings& ceilings, const Cluster& cluster) {
  const GpuSpeeds speeds = speeds_of(ceilings);
  const GpuClock clock(plan, config, speeds, cluster, ceilings.f32_flops / ceilings.load.ranks);
  std::vector<RankTime> times;
  double evaluation = 0;
  for (const RankPlan& rank : plan.ranks) {
    times.push_back(clock.time_of(rank));
    evaluation = std::max(evaluation, clock.evaluation_seconds(rank));
  }
  StepTime step = StagesOfPlan(plan, config).play(times);
  step.eval_seconds = evaluation;
  return step;
}

}  // namespace

StepTime predict_step(const Plan& plan, const RunConfig& config, const Ceilings& ceilings, const Cluster* cluster) {
  if (cluster != nullptr) return predict_on_gpus(plan, config, ceilings, *cluster);
  if (!ceilings.load.gpu.empty()) return predict_on_gpus(plan, config, ceilings, host_of(ceilings));
  const RankClock clock(ceilings, config);
  std::vector<RankTime> times;
  double evaluation = 0;
  for (const RankPlan& rank : plan.ranks) {
    times.push_back(clock.time_of(rank, plan.micro_batches));
    std::map<std::string, double> ignored;
    evaluation = std::max(evaluation, clock.parts(rank.evaluation, rank.eval_calls, ignored) +
                                          clock.exchange(rank.eval_sent, rank.eval_calls));
  }
  StepTime step = StagesOfPlan(plan, config).play(times);
  step.eval_seconds = evaluation;
  const double turns = static_cast<double>(config.parallel.ranks) / ceilings.load.ranks;
  step.seconds *= turns;
  step.eval_seconds *= turns;
  for (auto& [part, seconds] : step.parts) seconds *= turns;
  return step;
}

double predict_run(const StepTime& step, const RunConfig& config, int64_t done, std::optional<int64_t> held_out) {
  const auto& train = config.train;
  const double steps = static_cast<double>(std::max<int64_t>(train.train_iters - done, 0));
  const double looks = train.eval_interval > 0 ? steps / static_cast<double>(train.eval_interval) : 1;
  const int64_t wanted = train.eval_iters * train.global_batch_size,
                samples = std::min(wanted, held_out.value_or(wanted));
  const int64_t at_once = train.micro_batch_size * config.parallel.data_ranks();
  const auto batches = static_cast<double>((samples + at_once - 1) / at_once);  // per rank; the last one may be padded
  const BatchRamp ramp = config.batch_ramp();
  const int64_t left = ramp.consumed_by(train.train_iters) - ramp.consumed_by(std::min(done, train.train_iters));
  return static_cast<double>(left) / static_cast<double>(ramp.full()) * step.seconds +
         looks * batches * step.eval_seconds;
}

}  // namespace witan
