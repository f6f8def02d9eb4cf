#include "witan/planner/ceilings.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "witan/base/mutex.h"
#include "witan/base/threads.h"
#include "witan/kernels/ceiling.h"
#include "witan/planner/gpu_ceilings.h"
#include "witan/planner/plan.h"
#include "witan/planner/random_batch.h"
#include "witan/tensor/cuda.h"
#include "witan/train/step/engine.h"

namespace witan {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Two models that call every kernel between them: the default recipe's choices in small, and the others in smaller.
std::vector<ResolvedConfig> probes(const Load& load) {
  RunConfig usual;
  usual.model.dtype = load.dtype;
  usual.model.num_layers = 2;
  usual.model.vocab_size = 4096;
  usual.parallel = {load.ranks, 0, load.threads};
  usual.train.global_batch_size = usual.train.micro_batch_size * load.ranks;
  usual.parallel.device = "cpu";
  RunConfig other = usual;
  other.model.num_layers = 1;
  other.model.vocab_size = 256;
  other.model.moe.num_experts = 0;
  other.model.mlp.swiglu = false;
  other.model.norm.normalization = "LayerNorm";
  other.model.norm.norm_bias = true;
  other.model.add_bias_linear = true;
  other.model.hidden_dropout = 0.1;
  other.model.attention.position_embedding_type = "learned_absolute";
  other.optimizer.optimizer = "sgd";
  other.parallel.expert_model_parallel_size = 1;
  return {resolve(usual, {}), resolve(other, {})};
}

// What one rank measured.
struct Measured {
  std::map<std::string, Cost> kernels;  // the fastest of several steps
  double between = std::numeric_limits<double>::infinity();
};

void keep_fastest(std::map<std::string, Cost>& best, const KernelCosts& costs) {
  std::map<std::string, Cost> sums;
  for (const auto& [part, kernels] : costs)
    for (const auto& [kernel, cost] : kernels) sums[kernel] += cost;
  for (const auto& [kernel, cost] : sums) {
    const auto [at, fresh] = best.try_emplace(kernel, cost);
    if (!fresh && cost.seconds < at->second.seconds) at->second = cost;
  }
}

// Exchanges have a measurement of their own, without the waiting.
bool is_exchange(const Cost& cost) {
  return cost.flops == 0 && cost.bytes == 0;
}

Measured step_a_few_times(const ResolvedConfig& config, const Groups& groups, int64_t arena_bytes) {
  constexpr int64_t kSteps = 4;  // the first warms up
  ThreadPool pool(static_cast<int>(config->parallel.threads));
  Stream stream({Device::Kind::cpu}, Arena::reserve(arena_bytes), pool);
  Engine engine(stream, groups, config);
  const std::vector<Batch> batches = {
      random_batch(config, static_cast<uint64_t>(groups.layout().data_rank(groups.rank())))};
  stream.time_kernels();
  Measured measured;
  for (int64_t step = 1; step <= kSteps; ++step) {
    groups.world().barrier(stream);
    stream.reset_costs();
    const double start = stream.now();
    engine.step(batches, step, step - 1);
    const double whole = stream.now() - start;
    if (step == 1) continue;
    keep_fastest(measured.kernels, stream.costs());
    double inside = 0, exchanging = 0;
    for (const auto& [part, kernels] : stream.costs())
      for (const auto& [kernel, cost] : kernels) (is_exchange(cost) ? exchanging : inside) += cost.seconds;
    measured.between = std::min(measured.between, (whole - inside - exchanging) / inside);
  }
  return measured;
}

// Bytes/s that this rank sends in the two ways that thread ranks move bytes: sums, and copies.
std::map<std::string, double> measure_exchange(const Load& load, Group& group) {
  if (group.size() == 1) return {};
  constexpr int64_t kBytes = 4 << 20;
  const int64_t elements = kBytes / 4 / group.size() * group.size();
  ThreadPool pool(load.threads);
  Stream stream({Device::Kind::cpu}, Arena::reserve(3 * kBytes), pool);
  const Tensor in = stream.zeros({elements}, DType::f32), out = stream.zeros({elements}, DType::f32);
  std::map<std::string, double> rates;
  for (int attempt = 0; attempt < 16; ++attempt)
    for (const bool sums : {true, false}) {
      group.barrier(stream);
      group.reset_sent();
      const auto start = Clock::now();
      if (sums) {
        group.all_reduce(stream, in);
      } else {
        group.all_to_all_equal(stream, out, in);
      }
      const double took = seconds_since(start);
      for (const auto& [operation, bytes] : group.sent())
        if (bytes > 0) rates[operation] = std::max(rates[operation], bytes / took);
    }
  return rates;
}

// Whether a kernel was faster than what was measured as the most that is possible.
bool beats_peak(const Ceilings& ceilings) {
  return std::ranges::any_of(ceilings.kernels, [&](const auto& kernel) {
    const Cost& cost = kernel.second;
    return cost.seconds > 0 && ceilings.load.ranks * cost.flops / cost.seconds > ceilings.fma_flops;
  });
}

void merge(Ceilings& into, const Measured& measured) {
  for (const auto& [kernel, cost] : measured.kernels)
    if (!is_exchange(cost)) into.kernels[kernel] += cost;
}

}  // namespace

Load load_of(const RunConfig& config, int cores) {
  const auto& parallel = config.parallel;
  if (parallel.on_gpu()) return {config.model.dtype, static_cast<int>(parallel.ranks), 1, cuda::properties(0).name};
  if (parallel.ranks * parallel.threads <= cores)
    return {config.model.dtype, static_cast<int>(parallel.ranks), static_cast<int>(parallel.threads)};
  return {config.model.dtype, static_cast<int>(std::min<int64_t>(parallel.ranks, cores)),
          static_cast<int>(std::max<int64_t>(cores / parallel.ranks, 1))};
}

bool machine_is_busy(const Load& load) {
  if (!load.gpu.empty()) return false;
  ThreadPool all(load.ranks * load.threads);
  return kernels::measure_core_share(all) < kUndisturbed;
}

Ceilings fastest_of(const Ceilings& first, Ceilings second) {
  const auto rate = [](const Cost& cost) { return std::max(cost.flops, cost.bytes) / cost.seconds; };
  for (const auto& [name, cost] : first.kernels) {
    const auto [at, fresh] = second.kernels.try_emplace(name, cost);
    if (!fresh && rate(cost) > rate(at->second)) at->second = cost;
  }
  for (const auto& [operation, bytes] : first.exchange) {
    double& most = second.exchange[operation];
    most = std::max(most, bytes);
  }
  second.fma_flops = std::max(first.fma_flops, second.fma_flops);
  second.f32_flops = std::max(first.f32_flops, second.f32_flops);
  second.copy_bytes = std::max(first.copy_bytes, second.copy_bytes);
  second.between = std::min(first.between, second.between);
  if (!second.speeds) second.speeds = first.speeds;
  return second;
}

Ceilings measure_ceilings(const Load& load) {
  if (!load.gpu.empty()) return measure_gpu_ceilings(load);
  Ceilings ceilings;
  ceilings.load = load;
  double cores = 0;  // the shares that the threads had of them, summed over the looks at them
  int looks = 0;
  const auto measure_peaks = [&] {
    ThreadPool all(load.ranks * load.threads);
    cores += kernels::measure_core_share(all);
    ++looks;
    ceilings.fma_flops = std::max(ceilings.fma_flops, kernels::measure_fma_gflops(all) * 1e9);
    ceilings.copy_bytes = std::max(ceilings.copy_bytes, kernels::measure_copy_gbytes(all) * 1e9 / load.ranks);
  };
  measure_peaks();
  bool usual = true;
  for (const ResolvedConfig& config : probes(load)) {
    const int64_t arena = make_plan(config).arena_bytes();
    const Layout layout(config->parallel, load.ranks, config->model.moe.num_experts);
    ThreadWorld world(load.ranks);
    Mutex mutex;
    Ceilings sums;
    double between = 0;
    world.run([&](int rank) {
      const Groups groups = make_groups(world, layout, rank);
      const Measured measured = step_a_few_times(config, groups, arena);
      const auto exchange = measure_exchange(load, groups.world());
      const MutexLock lock(mutex);
      merge(sums, measured);
      between += measured.between / load.ranks;
      if (rank == 0) sums.exchange = exchange;
    });
    measure_peaks();
    ceilings.kernels.merge(sums.kernels);  // the usual probe's figures are the ones kept
    if (!std::exchange(usual, false)) continue;
    ceilings.exchange = sums.exchange;
    ceilings.between = std::max(between, 0.0);
  }
  ceilings.busy = cores < kUndisturbed * looks || beats_peak(ceilings);
  return ceilings;
}

}  // namespace witan
