#include "witan/planner/step_time.h"

#include <algorithm>
#include <string>

#include "witan/optim/param_groups.h"

namespace witan {
namespace {

// Of its ceiling that a GPU's kernel reaches, as a rule: they are not measured one by one.
constexpr double kUsualShare = 0.8;

// Of a thread's multiply-adds that LAPACK reaches where it decomposes a matrix.
constexpr double kLapackShare = 0.08;

// How a run's optimizers decompose matrices, and in which dtype they multiply them.
struct MatrixWork {
  explicit MatrixWork(const RunConfig& config) {
    const ParamGroups groups(config.optimizer);
    for (const ParamGroup& group : groups.all()) {
      const bool shampoo = group.settings.optimizer == "shampoo";
      eigen = eigen || (shampoo && group.settings.shampoo_root == "eigen");
      wide = wide || shampoo || group.settings.optimizer == "soap";
    }
  }
  bool by_lapack(const std::string& kernel) const {
    return kernel == "renew_basis" || (kernel == "inverse_root" && eigen);
  }

  bool eigen = false;  // Shampoo's roots are of eigenvectors
  bool wide = false;   // products are of float32 at least
};

// Seconds of a rank's kernels and of its exchanges, on cores of its own.
class RankClock {
 public:
  RankClock(const Ceilings& ceilings, const RunConfig& config) : ceilings_(ceilings), work_(config) {
    const double ranks = ceilings.load.ranks;
    flops_ = ceilings.fma_flops / ranks;
    wide_flops_ = ceilings.f32_flops > 0 ? std::min(ceilings.f32_flops / ranks, flops_) : flops_;
    for (const auto& [kernel, cost] : ceilings.kernels) all_ += cost;
  }

  double lapack(const Cost& cost) const { return cost.flops * ceilings_.load.threads / (kLapackShare * flops_); }
  bool by_lapack(const std::string& name) const { return ceilings_.load.gpu.empty() && work_.by_lapack(name); }

  double kernel(const std::string& part, const std::string& name, const Cost& cost) const {
    if (by_lapack(name)) return lapack(cost);
    const double flops = work_.wide && part == "optimizer" ? wide_flops_ : flops_;
    if (ceilings_.kernels.empty()) return std::max(cost.flops / flops, cost.bytes / ceilings_.copy_bytes) / kUsualShare;
    const auto found = ceilings_.kernels.find(name);
    const Cost& measured = found != ceilings_.kernels.end() && found->second.seconds > 0 ? found->second : all_;
    // Which of the two the kernel ran nearer to its ceiling in is what bounds it.
    const double of_flops = measured.flops / measured.seconds / flops_;
    const double of_bytes = measured.bytes / measured.seconds / ceilings_.copy_bytes;
    return of_flops > of_bytes ? cost.flops * measured.seconds / measured.flops
                               : cost.bytes * measured.seconds / measured.bytes;
  }

  double parts(const KernelCosts& costs, std::map<std::string, double>& parts) const {
    double sum = 0;
    for (const auto& [part, kernels] : costs)
      for (const auto& [name, cost] : kernels) {
        const double seconds = kernel(part, name, cost) * (1 + ceilings_.between);
        parts[part] += seconds;
        sum += seconds;
      }
    return sum;
  }

  double exchange(const SentBytes& sent) const {
    double sum = 0;
    for (const auto& [axis, operations] : sent)
      for (const auto& [operation, bytes] : operations) {
        const auto rate = ceilings_.exchange.find(operation == "all_reduce" ? operation : "all_to_all_equal");
        if (rate != ceilings_.exchange.end()) sum += bytes / rate->second;
      }
    return sum;
  }

 private:
  const Ceilings& ceilings_;
  const MatrixWork work_;
  double flops_ = 0, wide_flops_ = 0;
  Cost all_;
};

// Exchanges of a rank on a cluster, as far as they are waited for, and what blocks cost beside their kernels.
class ClusterClock {
 public:
  ClusterClock(const Plan& plan, const RunConfig& config, const Cluster& cluster)
      : plan_(plan),
        parallel_(config.parallel),
        cluster_(cluster),
        layout_(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts) {}

  double waited(const RankPlan& rank, double kernel_seconds) const {
    const LinkClock links(cluster_, layout_, rank.rank);
    double waited = 0, reductions = 0, gathers = 0;
    for (const auto& [group, operations] : rank.sent)
      for (const auto& [operation, bytes] : operations)
        (is_reduction(group, operation) ? reductions
         : is_gather(group, operation)  ? gathers
                                        : waited) += links.seconds(group, operation, bytes);
    const bool divided = layout_.shards_gradients(false) || layout_.shards_gradients(true);
    const double backward = kBackward * kernel_seconds / (divided ? 1 : static_cast<double>(plan_.micro_batches));
    return waited + std::max(reductions - backward, 0.0) + std::max(gathers - kernel_seconds, 0.0);
  }
  double looked(const RankPlan& rank) const {
    const LinkClock links(cluster_, layout_, rank.rank);
    double sum = 0;
    for (const auto& [group, operations] : rank.eval_sent)
      for (const auto& [operation, bytes] : operations) sum += links.seconds(group, operation, bytes);
    return sum;
  }

  double beside_kernels(const RankPlan& rank) const {
    constexpr double kBlock = 1e-4;
    int64_t blocks = 0;
    const int stage = layout_.mesh().coordinate(rank.rank, Axis::pipeline);
    for (const auto& [first, last] : plan_.stages[static_cast<size_t>(stage)].chunks) blocks += last - first;
    return kBlock * static_cast<double>(blocks * plan_.micro_batches);
  }

 private:
  static constexpr double kBackward = 2.0 / 3;  // of a micro-batch's time

  // Of gradients, or of as little as losses and counts.
  bool is_reduction(const std::string& group, const std::string& operation) const {
    const bool reduces = operation == "all_reduce" || operation.starts_with("reduce_scatter");
    return parallel_.overlap_grad_reduce && reduces &&
           (group.find("replicate") != std::string::npos || group.find("shard") != std::string::npos);
  }
  bool is_gather(const std::string& group, const std::string& operation) const {
    return parallel_.sharding() == Sharding::parameters && parallel_.overlap_param_gather &&
           operation == "all_gather_uneven" && group.find("shard") != std::string::npos;
  }

  const Plan& plan_;
  const ParallelConfig& parallel_;
  const Cluster& cluster_;
  const Layout layout_;
};

}  // namespace

StepTime predict_step(const Plan& plan, const RunConfig& config, const Ceilings& ceilings, const Cluster* cluster) {
  const RankClock clock(ceilings, config);
  std::optional<ClusterClock> far;
  if (cluster) far.emplace(plan, config, *cluster);
  StepTime slowest;
  for (const RankPlan& rank : plan.ranks) {
    StepTime time;
    time.seconds = clock.parts(rank.step, time.parts);
    const double exchange = far ? far->waited(rank, time.seconds) : clock.exchange(rank.sent);
    if (exchange > 0) time.parts["exchange"] = exchange;
    time.seconds += exchange;
    if (far) time.seconds += time.parts["launches"] = far->beside_kernels(rank);
    std::map<std::string, double> ignored;
    time.eval_seconds =
        clock.parts(rank.evaluation, ignored) + (far ? far->looked(rank) : clock.exchange(rank.eval_sent));
    if (time.seconds > slowest.seconds) slowest = time;
  }
  // Stages wait for the first micro-batch to reach them, and for the last to leave the others.
  if (plan.bubble > 0) slowest.parts["bubble"] = slowest.seconds * plan.bubble;
  slowest.seconds *= 1 + plan.bubble;
  const double turns = static_cast<double>(config.parallel.ranks) / ceilings.load.ranks;
  slowest.seconds *= turns;
  slowest.eval_seconds *= turns;
  for (auto& [part, seconds] : slowest.parts) seconds *= turns;
  return slowest;
}

double lapack_seconds(const Plan& plan, const RunConfig& config, const Ceilings& ceilings) {
  const RankClock clock(ceilings, config);
  double most = 0;
  for (const RankPlan& rank : plan.ranks) {
    double sum = 0;
    for (const auto& [part, kernels] : rank.step)
      for (const auto& [name, cost] : kernels)
        if (clock.by_lapack(name)) sum += clock.lapack(cost);
    most = std::max(most, sum);
  }
  return most * static_cast<double>(config.parallel.ranks) / ceilings.load.ranks;
}

double predict_run(const StepTime& step, const RunConfig& config, int64_t done, std::optional<int64_t> held_out) {
  const auto& train = config.train;
  const double steps = static_cast<double>(std::max<int64_t>(train.train_iters - done, 0));
  const double looks = train.eval_interval > 0 ? steps / static_cast<double>(train.eval_interval) : 1;
  const int64_t wanted = train.eval_iters * train.global_batch_size,
                samples = std::min(wanted, held_out.value_or(wanted));
  const int64_t at_once = train.micro_batch_size * config.parallel.data_ranks();
  const auto batches = static_cast<double>((samples + at_once - 1) / at_once);  // a rank's; the last may be padded
  return steps * step.seconds + looks * batches * step.eval_seconds;
}

}  // namespace witan
