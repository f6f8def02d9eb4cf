#include "witan/cli/train/planning.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/machine.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/tensor/cuda.h"
#include "witan/train/loop/interval_samples.h"

namespace witan::cli {
namespace {

// Iterations of warm-up that a shortened run keeps: the first updates of Adam are too large without any.
constexpr int64_t kLeastWarmup = 10;
// Peak FLOPs per byte copied in the same time are at most this: a short measurement of copying is far too low if other
// programs use the cores meanwhile. Idle processors have 5 to 10.
constexpr double kFlopsOfAByte = 16;
constexpr int64_t kContextBytes = int64_t{400} << 20;  // memory that a GPU's context takes

int64_t steps_left(const RunConfig& config, int64_t done) {
  return std::max<int64_t>(config.train.train_iters - done, 0);
}

// The next smaller of 100, 150, … 950, 1000, 1500, … 9500, 10000 …, for numbers above 100.
int64_t round_below(int64_t steps) {
  int64_t unit = 50;
  while (unit * 20 < steps) unit *= 10;
  return (steps - 1) / unit * unit;
}

std::string kept_in(const CeilingsFile& file) {
  return "saved in " + file.path().string();
}

}  // namespace

CeilingsFile ceilings_file() {
  return {ceilings_path(), machine_identity()};
}

Plan plan_of(const ResolvedConfig& config, const Tokenizer* tokenizer) {
  return make_plan(config, {.prompt_tokens = prompt_tokens(config, tokenizer)});
}

std::optional<int64_t> prompt_tokens(const RunConfig& config, const Tokenizer* tokenizer) {
  if (!tokenizer) return std::nullopt;
  const SamplePrompts prompts = sample_prompts(config, *tokenizer);
  size_t tokens = prompt_ids(*tokenizer, prompts.last, prompts.chat).size();
  for (const std::string& prompt : prompts.interval)
    tokens = std::max(tokens, encode_sample_prompt(*tokenizer, prompt, prompts.chat).size());
  return static_cast<int64_t>(tokens);
}

int64_t usable_host_memory() {
  return static_cast<int64_t>(read_memory().usable());
}

int64_t usable_memory(const ResolvedConfig& config) {
  if (!config->parallel.on_gpu()) return usable_host_memory();
  // A run with more ranks than GPUs is planned for GPUs like those that are here.
  const int ranks = static_cast<int>(std::min<int64_t>(config->parallel.ranks, cuda::devices()));
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int device = 0; device < ranks; ++device) least = std::min(least, usable_memory_of_gpu(device));
  return ranks > 0 ? least : 0;
}

int64_t usable_memory_of_gpu(int device) {
  return cuda::free_memory(device) + kContextBytes;  // the plan's reserve includes this process's context
}

std::optional<std::string> too_many_threads(const ParallelConfig& parallel, int cores) {
  const int64_t ranks = parallel.ranks_per_process > 0 ? parallel.ranks_per_process : parallel.ranks;
  if (parallel.on_gpu() || parallel.threads <= 1 || ranks * parallel.threads <= cores) return std::nullopt;
  return cat("threads = ", parallel.threads, ranks > 1 ? cat(" for each of ", ranks, " ranks") : "",
             " is more than the ", counted(cores, "core"),
             " that there are: threads that wait for a core make every step slower; ",
             "without --threads there are as many as are useful");
}

std::optional<Timing> timing_of(const Plan& plan, const ResolvedConfig& config, int64_t done) {
  if (config->parallel.on_gpu() && config->parallel.ranks > cuda::devices()) return std::nullopt;
  const CeilingsFile file = ceilings_file();
  const Load load = load_of(config, usable_cores());
  const bool kept = file.find(load).has_value();
  const Ceilings ceilings = file.get(load);
  std::string source = kept ? kept_in(file) : "measured now";
  if (ceilings.busy)
    source += "; the machine was busy when they were measured: `witan doctor` measures them again when it is idle";
  return timing_at({ceilings, std::move(source)}, plan, config, done, std::nullopt);
}

Timing timing_on(const Cluster& cluster, const Plan& plan, const ResolvedConfig& config) {
  Timing timing;
  timing.ceilings = cluster.ceilings({config->model.dtype, static_cast<int>(config->parallel.ranks), 1});
  timing.source =
      fmt::format("of {}'s data sheet; links {:.0f} GB/s, hosts of {} GPUs, network {:.0f} GB/s a GPU",
                  cluster.gpu.name, cluster.link_bytes_s / 1e9, cluster.gpus_per_host, cluster.network_bytes_s / 1e9);
  timing.step = predict_step(plan, config, timing.ceilings, &cluster);
  timing.steps = steps_left(config, 0);
  timing.run_seconds = predict_run(timing.step, config, 0);
  return timing;
}

Speeds quick_speeds(const ResolvedConfig& config, const std::optional<JobCeilings>& job) {
  const Load load = job ? Load{config->model.dtype, static_cast<int>(config->parallel.ranks),
                               static_cast<int>(config->parallel.threads)}
                        : load_of(config, usable_cores());
  // FLOP/s and bytes/s of all ranks together.
  const auto by_peaks = [&](double flops, double bytes, bool busy) -> Speeds {
    Ceilings ceilings;
    ceilings.load = load;
    ceilings.busy = busy;
    ceilings.fma_flops = flops;
    ceilings.copy_bytes = std::max(bytes, flops / kFlopsOfAByte) / load.ranks;
    ceilings.calls = typical_cpu_speeds(flops / load.ranks, ceilings.copy_bytes, load.threads);
    ceilings.exchange = {{"all_reduce", ceilings.copy_bytes / 2}, {"all_to_all_equal", ceilings.copy_bytes / 2}};
    return {ceilings, "the peaks of multiply-adds and copying"};
  };
  if (job) return by_peaks(job->ceilings.flops, job->ceilings.bytes, job->busy);
  const CeilingsFile file = ceilings_file();
  auto kept = file.find(load);
  if (kept && !(kept->busy && load.gpu.empty())) return {*kept, kept_in(file)};
  if (config->parallel.on_gpu()) return {file.get(load), "measured now"};
  ThreadPool pool(load.ranks * load.threads);
  const double flops = 1e9 * kernels::measure_fma_gflops(pool);
  if (kept) {
    kept->fma_flops = std::max(kept->fma_flops, flops);
    return {*kept, kept_in(file)};
  }
  const bool busy = kernels::measure_core_share(pool) < kUndisturbed;
  return by_peaks(flops, 1e9 * kernels::measure_copy_gbytes(pool), busy);
}

std::optional<Speeds> speeds_without_writing(const ResolvedConfig& config) {
  const bool kept = ceilings_file().find(load_of(config, usable_cores())).has_value();
  if (config->parallel.on_gpu() && !kept) return std::nullopt;
  return quick_speeds(config, std::nullopt);
}

Timing timing_at(const Speeds& speeds, const Plan& plan, const ResolvedConfig& config, int64_t done,
                 std::optional<int64_t> held_out) {
  Timing timing;
  timing.ceilings = speeds.ceilings;
  timing.source = speeds.source;
  timing.step = predict_step(plan, config, speeds.ceilings);
  timing.steps = steps_left(config, done);
  timing.run_seconds = predict_run(timing.step, config, done, held_out);
  return timing;
}

RunConfig with_fewer_steps(RunConfig config, int64_t steps, const KeepsKey& keeps) {
  TrainConfig& train = config.train;
  OptimizerConfig& optimizer = config.optimizer;
  const double share = static_cast<double>(steps) / static_cast<double>(train.train_iters);
  const auto shrink = [&](const char* key, int64_t& value, int64_t least) {
    if (value <= 0 || keeps(key)) return;
    value = std::max(std::min(value, least), std::lround(share * static_cast<double>(value)));
  };
  shrink("eval_interval", train.eval_interval, 1);
  shrink("save_interval", train.save_interval, 1);
  shrink("sample_interval", train.sample_interval, 1);
  shrink("lr_warmup_iters", optimizer.lr_warmup_iters, kLeastWarmup);
  shrink("lr_decay_iters", optimizer.lr_decay_iters, 1);
  shrink("lr_wsd_decay_iters", optimizer.lr_wsd_decay_iters, 1);
  shrink("ademamix_warmup_iters", optimizer.ademamix_warmup_iters, 1);
  train.train_iters = steps;
  return config;
}

std::optional<int64_t> steps_within(double seconds, const StepTime& step, const RunConfig& config,
                                    const KeepsKey& keeps) {
  const auto fits = [&](int64_t steps) {
    return predict_run(step, with_fewer_steps(config, steps, keeps), 0) <= seconds;
  };
  const int64_t whole = config.train.train_iters;
  if (whole <= kFewestSteps || fits(whole)) return std::nullopt;
  int64_t steps = round_below(whole);
  while (steps > kFewestSteps && !fits(steps)) steps = round_below(steps);
  return std::max(steps, kFewestSteps);
}

std::optional<Prediction> known_prediction(const Plan& plan, const ResolvedConfig& config) {
  const Load load = load_of(config, usable_cores());
  std::optional<Ceilings> known = ceilings_file().find(load);
  const bool measured = known && (load.gpu.empty() || known->speeds);
  if (!measured) {
    const GpuModel* model = model_of_device(load.gpu);
    if (model == nullptr || load.dtype == "float64") return std::nullopt;
    known = Cluster{*model}.ceilings(load);
  }
  known->load.gpu = load.gpu;
  return Prediction{predict_step(plan, config, *known).seconds,
                    measured ? "what was measured here" : "what is typical of its model"};
}

void note_speed(const ResolvedConfig& config, double gflops) {
  ceilings_file().raise(load_of(config, usable_cores()), 1e9 * gflops);
}

std::optional<Tokenizer> run_tokenizer(const RunConfig& config) {
  const fs::path folder = fs::path(config.train.runs_folder) / config.train.run, path = folder / "tokenizer.json";
  // Without these the tokenizer is left over from a start that failed before its first step.
  const bool begun = fs::exists(folder / "config.toml") || fs::exists(folder / "checkpoints");
  return begun && fs::exists(path) ? std::optional(Tokenizer::load(path)) : std::nullopt;
}

int64_t expected_vocabulary(const DataConfig& config) {
  return config.tokenizer.empty() ? config.bpe.vocab_size : Tokenizer::load(config.tokenizer).vocab_size();
}

}  // namespace witan::cli
