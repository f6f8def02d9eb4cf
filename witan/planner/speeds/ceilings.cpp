#include "witan/planner/speeds/ceilings.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "witan/base/threads/mutex.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/planner/plan.h"
#include "witan/planner/speeds/random_batch.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/cuda.h"
#include "witan/train/step/engine.h"

namespace witan {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A small model whose steps are timed.
struct Probe {
  ResolvedConfig config;
  bool usual;     // its kernels' rates are the machine's
  bool small;     // it shows the fixed cost of calls
  int64_t steps;  // the first one warms up
  double weight;  // weight of its measurements in the fit
};

RunConfig narrow(RunConfig config, int64_t width, int64_t sequences, int64_t length) {
  config.model.num_layers = 1;
  config.model.hidden_size = width;
  config.data.seq_length = length;
  config.train.micro_batch_size = sequences;
  config.train.global_batch_size = sequences * config.parallel.ranks;
  return config;
}

// Two models that call every kernel between them: `usual` with the default recipe's choices and `other` with the
// alternatives. Then narrower versions of both, with many tokens and with few.
std::vector<Probe> probes(const Load& load) {
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
  constexpr int64_t kSteps = 4, kShortSteps = 8;
  constexpr double kLarge = 3;  // most runs have large calls, which must be predicted well
  std::vector<Probe> all = {{resolve(usual, {}), true, false, kSteps, kLarge},
                            {resolve(other, {}), false, false, kSteps, kLarge}};
  for (const RunConfig& config : {usual, other})
    for (const auto& [width, sequences, length] : {std::tuple(64, 4, 256), {16, 4, 256}, {16, 1, 32}})
      all.push_back({resolve(narrow(config, width, sequences, length), {}), false, true, kShortSteps, 1});
  return all;
}

// The measurements of one rank.
struct Measured {
  std::map<std::string, Cost> kernels;                      // the fastest of several steps
  std::map<std::pair<std::string, CallShape>, Cost> calls;  // the same by shape
  double between = std::numeric_limits<double>::infinity();
  double between_call = std::numeric_limits<double>::infinity();
};

template <class Key>
void keep_fastest(std::map<Key, Cost>& best, const std::map<Key, Cost>& sums) {
  for (const auto& [key, cost] : sums) {
    const auto [at, fresh] = best.try_emplace(key, cost);
    if (!fresh && cost.seconds < at->second.seconds) at->second = cost;
  }
}

std::map<std::string, Cost> by_kernel(const KernelCosts& costs) {
  std::map<std::string, Cost> sums;
  for (const auto& [part, kernels] : costs)
    for (const auto& [kernel, cost] : kernels) sums[kernel] += cost;
  return sums;
}

std::map<std::pair<std::string, CallShape>, Cost> by_shape(const CallCosts& calls) {
  std::map<std::pair<std::string, CallShape>, Cost> sums;
  for (const auto& [kind, cost] : calls)
    if (kind.group.empty()) sums[{kind.name, kind.shape}] += cost;
  return sums;
}

// Exchanges are measured separately, without the time spent waiting for peers.
bool is_exchange(const Cost& cost) {
  return cost.flops == 0 && cost.bytes == 0;
}

Measured step_a_few_times(const Probe& probe, const Groups& groups, int64_t arena_bytes) {
  const ResolvedConfig& config = probe.config;
  ThreadPool pool(static_cast<int>(config->parallel.threads));
  Stream stream({Device::Kind::cpu}, Arena::reserve(arena_bytes), pool);
  Engine engine(stream, groups, config);
  const std::vector<Batch> batches = {
      random_batch(config, static_cast<uint64_t>(groups.layout().data_rank(groups.rank())))};
  stream.time_kernels();
  CallCosts calls;
  stream.record_calls(&calls);
  Measured measured;
  for (int64_t step = 1; step <= probe.steps; ++step) {
    groups.world().barrier(stream);
    stream.reset_costs();
    calls.clear();
    const double start = stream.now();
    engine.step(batches, step, step - 1);
    const double whole = stream.now() - start;
    if (step == 1) continue;
    keep_fastest(measured.kernels, by_kernel(stream.costs()));
    keep_fastest(measured.calls, by_shape(calls));
    double inside = 0, exchanging = 0, count = 0;
    for (const auto& [part, kernels] : stream.costs())
      for (const auto& [kernel, cost] : kernels) {
        (is_exchange(cost) ? exchanging : inside) += cost.seconds;
        count += cost.calls;
      }
    const double between = whole - inside - exchanging;
    measured.between = std::min(measured.between, between / inside);
    measured.between_call = std::min(measured.between_call, between / count);
  }
  stream.record_calls(nullptr);
  return measured;
}

// Bytes/s that this rank sends in the two ways that thread ranks move bytes: reductions and copies.
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

// Seconds of a tiny exchange on this rank: the median of many, since peers may arrive late.
double measure_exchange_call(const Load& load, Group& group) {
  if (group.size() == 1) return 0;
  constexpr int kAttempts = 64;
  ThreadPool pool(load.threads);
  Stream stream({Device::Kind::cpu}, Arena::reserve(1 << 20), pool);
  const Tensor few = stream.zeros({group.size()}, DType::f32);
  std::vector<double> seconds;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto start = Clock::now();
    group.all_reduce(stream, few);
    seconds.push_back(seconds_since(start));
  }
  std::ranges::nth_element(seconds, seconds.begin() + kAttempts / 2);
  return seconds[kAttempts / 2];
}

// Whether a kernel was faster than the measured peak.
bool beats_peak(const Ceilings& ceilings) {
  return std::ranges::any_of(ceilings.kernels, [&](const auto& kernel) {
    const Cost& cost = kernel.second;
    return cost.seconds > 0 && ceilings.load.ranks * cost.flops / cost.seconds > ceilings.fma_flops;
  });
}

// The combined measurements of a probe's ranks.
struct Probed {
  std::map<std::string, Cost> kernels;
  std::map<std::string, std::vector<TimedCalls>> calls;  // by kernel
  std::map<std::string, double> exchange;
  double exchange_call = 0;
  double between = 0, between_call = 0;  // mean over the ranks
};

void merge(Probed& into, const Measured& measured, const Probe& probe) {
  for (const auto& [kernel, cost] : measured.kernels)
    if (!is_exchange(cost)) into.kernels[kernel] += cost;
  for (const auto& [call, cost] : measured.calls)
    if (!is_exchange(cost))
      into.calls[call.first].push_back({moved_by(call.first, call.second, cost), cost, probe.weight});
  const auto ranks = static_cast<double>(probe.config->parallel.ranks);
  into.between += std::max(measured.between, 0.0) / ranks;
  into.between_call += std::max(measured.between_call, 0.0) / ranks;
}

Probed run_probe(const Load& load, const Probe& probe) {
  const ResolvedConfig& config = probe.config;
  const int64_t arena = make_plan(config).arena_bytes();
  const Layout layout(config->parallel, load.ranks, config->model.moe.num_experts);
  ThreadWorld world(load.ranks);
  Mutex mutex;
  Probed probed;
  world.run([&](int rank) {
    const Groups groups = make_groups(world, layout, rank);
    const Measured measured = step_a_few_times(probe, groups, arena);
    std::map<std::string, double> exchange;
    double exchange_call = 0;
    if (probe.usual) {
      exchange = measure_exchange(load, groups.world());
      exchange_call = measure_exchange_call(load, groups.world());
    }
    const MutexLock lock(mutex);
    merge(probed, measured, probe);
    if (rank != 0) return;
    probed.exchange = exchange;
    probed.exchange_call = exchange_call;
  });
  return probed;
}

// Measures the peaks of GPU 0 on random numbers, since zeros would flatter it. fma_flops: matrix products of 8192^3 in
// the load's dtype (2048^3 in float64), as the model's own are made, times the ranks; copy_bytes: a copy of 1 GiB
// within the GPU, read plus written. Both are medians. Needs 3 GiB of the GPU. Throws DeviceError, OutOfMemoryError.
Ceilings measure_gpu_ceilings(const Load& load) {
  Ceilings ceilings;
  ceilings.load = load;
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{3} << 30), pool);
  const kernels::DeviceCeilings device = kernels::measure_device(stream, dtype_from_name(load.dtype));
  ceilings.fma_flops = load.ranks * device.flops;
  ceilings.f32_flops = load.ranks * kernels::measure_device(stream, DType::f32).flops;
  ceilings.copy_bytes = device.bytes;
  return ceilings;
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
  double saved = 0;  // seconds saved by the first measurement, relative to its kernels at the second's rates
  for (const auto& [name, cost] : first.kernels) {
    const auto [at, fresh] = second.kernels.try_emplace(name, cost);
    if (!fresh) saved += std::max(cost.flops, cost.bytes) / rate(at->second) - cost.seconds;
    if (!fresh && rate(cost) > rate(at->second)) at->second = cost;
  }
  if (saved > 0 && !first.calls.kernels.empty()) second.calls = first.calls;
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
  double cores = 0;  // the threads' shares of core time, summed over the looks
  int looks = 0;
  const auto measure_peaks = [&] {
    ThreadPool all(load.ranks * load.threads);
    cores += kernels::measure_core_share(all);
    ++looks;
    ceilings.fma_flops = std::max(ceilings.fma_flops, kernels::measure_fma_gflops(all) * 1e9);
    ceilings.copy_bytes = std::max(ceilings.copy_bytes, kernels::measure_copy_gbytes(all) * 1e9 / load.ranks);
  };
  measure_peaks();
  std::map<std::string, std::vector<TimedCalls>> calls;
  std::optional<double> between_call;
  for (const Probe& probe : probes(load)) {
    Probed probed = run_probe(load, probe);
    for (auto& [kernel, timed] : probed.calls) calls[kernel].insert(calls[kernel].end(), timed.begin(), timed.end());
    if (probe.small) {
      between_call = std::min(between_call.value_or(probed.between_call), probed.between_call);
      continue;
    }
    measure_peaks();
    ceilings.kernels.merge(probed.kernels);  // where both probes have a kernel, the usual one's figures stay
    if (!probe.usual) continue;
    ceilings.exchange = probed.exchange;
    ceilings.calls.exchange_call = probed.exchange_call;
    ceilings.between = probed.between;
  }
  ceilings.calls.between_call = between_call.value_or(0);
  for (const auto& [kernel, timed] : calls) ceilings.calls.kernels[kernel] = fit_speed(timed);
  ceilings.busy = cores < kUndisturbed * looks || beats_peak(ceilings);
  return ceilings;
}

}  // namespace witan
