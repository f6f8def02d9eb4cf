// witan bench step: measures whole training steps of a configuration on random tokens.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "witan/base/numbers/median.h"
#include "witan/base/process.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/bench/bench.h"
#include "witan/cli/train/job.h"
#include "witan/cli/train/planning.h"
#include "witan/comm/peers/host_identity.h"
#include "witan/comm/threads/threads.h"
#include "witan/moe/dispatchers/replicas.h"
#include "witan/moe/routers/router.h"
#include "witan/parallel/peers.h"
#include "witan/planner/search/fit.h"
#include "witan/planner/speeds/random_batch.h"
#include "witan/tensor/cuda.h"
#include "witan/train/config/resolve.h"
#include "witan/train/loop/start_check.h"
#include "witan/train/step/device.h"
#include "witan/train/step/engine.h"

namespace witan::cli {
namespace {

constexpr int64_t kWarmUpSteps = 3;  // libraries choose kernels, the step is recorded, and replayed once

struct StepArgs {
  RunConfigArgs config;
  int64_t steps = 10;
  bool kernels = false;
  std::string json, skew;
};

// Measurements of rank 0.
struct Measured {
  std::vector<double> seconds;
  double first_loss = 0, last_loss = 0;
  std::optional<double> load_max_over_mean;         // in the last step's worst layer, if there are experts
  std::vector<std::vector<int64_t>> expert_counts;  // [layers][E] of the last step
  int64_t again = 0;  // timed steps that ran twice or more (moe/dispatchers/receive_buffers.h)
  int64_t arena_peak = 0;
  KernelCosts kernels;  // of one more step that waits for each kernel; with --kernels
};

// This rank's micro-batches of a step, with new random tokens.
std::vector<Batch> fresh_batches(const RunConfig& config, int64_t step, int data_rank) {
  const int64_t mine = config.micro_batches() / config.parallel.data_ranks();
  std::vector<Batch> batches;
  for (int64_t i = 0; i < mine; ++i)
    batches.push_back(
        random_batch(config, static_cast<uint64_t>(step * config.micro_batches() + data_rank * mine + i)));
  return batches;
}

Measured run_rank(const ResolvedConfig& config, World& world, int rank, int64_t arena_bytes, const StepArgs& state) {
  const int64_t steps = state.steps;
  const Device device = device_of(config, world.local_rank(rank));
  ThreadPool pool(static_cast<int>(config->parallel.threads));
  Stream stream(device, reserve_arena(device, arena_bytes), pool);
  const Layout layout = layout_of(config);
  const PeerAccess peers = peers_of(config->parallel, layout, rank);
  const Groups groups = make_groups(world, layout, rank, stream, sums_of(config), peers);
  require_peers(groups, peers);
  const int data_rank = groups.layout().data_rank(rank);
  Engine engine(stream, groups, config);
  Measured measured;
  for (int64_t step = 1; step <= kWarmUpSteps + steps; ++step) {
    const auto batches = fresh_batches(config, step, data_rank);
    const Stopwatch whole;
    const StepResult result = engine.step(batches, step, step - 1);
    if (step == 1) measured.first_loss = result.loss;
    measured.last_loss = result.loss;
    measured.load_max_over_mean = result.router.model(kLoadMaxOverMean);
    measured.expert_counts = result.router.counts(kExpertCounts);
    if (step <= kWarmUpSteps) continue;
    measured.seconds.push_back(whole.seconds());
    if (result.passes > 1 || result.exchange_fill > 0) ++measured.again;
  }
  measured.arena_peak = stream.arena().high_water();
  if (state.kernels) {
    stream.time_kernels();
    stream.reset_costs();
    const int64_t step = kWarmUpSteps + steps + 1;
    engine.step(fresh_batches(config, step, data_rank), step, step - 1);
    measured.kernels = stream.costs();
  }
  return measured;
}

// Prints the result, in the process of rank 0; the others have measured nothing.
Measured run_ranks(const ResolvedConfig& config, World& world, const Plan& plan, const StepArgs& state) {
  Measured measured;
  world.run([&](int rank) {
    Measured mine = run_rank(config, world, rank, plan.ranks[static_cast<size_t>(rank)].arena_bytes, state);
    if (rank == 0) measured = std::move(mine);
  });
  return measured;
}

// The ceilings of several processes on the CPU, which none can measure alone; nothing in other cases.
std::optional<kernels::DeviceCeilings> ceilings_of_job(const ResolvedConfig& config, ProcessWorld* world) {
  if (world == nullptr || config->parallel.on_gpu()) return std::nullopt;
  const auto measure = [](ThreadPool& pool) {
    Stream stream({Device::Kind::cpu}, Arena::reserve(0), pool);
    return kernels::measure_device(stream);
  };
  return measure_job(*world, config->parallel.ranks_per_process, config->parallel.threads, measure).ceilings;
}

// Adds the predicted time and its deviation from the measured one.
BenchFigure figure_of(const Prediction& predicted, double measured) {
  const double off = 100 * (predicted.seconds / measured - 1);
  return {"predicted_s", predicted.seconds, "predicted",
          fmt::format("{:.1f} ms ({:+.0f} %) by {}", 1e3 * predicted.seconds, off, predicted.source)};
}

// `local_ranks`: ranks of this host. `job`: the ceilings of all processes; nothing: this device's are measured.
BenchReport report_of(const ResolvedConfig& config, const Plan& plan, const Measured& measured, int64_t local_ranks,
                      const std::optional<kernels::DeviceCeilings>& job) {
  const int64_t ranks = config->parallel.ranks;
  const bool on_gpu = config->parallel.on_gpu();
  BenchReport report =
      begin_report(fmt::format("step, {} rank{}, {} parameters, {}", ranks, ranks == 1 ? "" : "s",
                               format_count(static_cast<double>(plan.counts.exact)), config->model.dtype),
                   device_of(config, 0), static_cast<int>(config->parallel.threads * (on_gpu ? 1 : local_ranks)), job);
  if (on_gpu) report.ceilings.flops *= static_cast<double>(ranks);
  const double seconds = median(measured.seconds), tokens = static_cast<double>(plan.tokens_per_step);
  report.lines.push_back({fmt::format("{} tokens", plan.tokens_per_step), seconds, plan.step_flops, 0});
  for (const auto& [part, kernels] : measured.kernels)
    for (const auto& [kernel, cost] : kernels)
      report.lines.push_back({cat(part, ": ", kernel), cost.seconds, cost.flops, cost.bytes});
  std::stable_sort(report.lines.begin() + 1, report.lines.end(),
                   [](const BenchLine& a, const BenchLine& b) { return a.seconds > b.seconds; });
  report.figures = {
      {"tokens_per_s", tokens / seconds, "tokens/s", fmt::format("{:.0f}", tokens / seconds)},
      {"fastest_s", std::ranges::min(measured.seconds), "fastest, slowest step",
       fmt::format("{:.2f}, {:.2f} ms", 1e3 * std::ranges::min(measured.seconds),
                   1e3 * std::ranges::max(measured.seconds))},
      {"arena_bytes", static_cast<double>(measured.arena_peak), "memory of a rank's arena",
       format_bytes(static_cast<double>(measured.arena_peak))},
      {"first_loss", measured.first_loss, "loss of the first step", fmt::format("{:.4f}", measured.first_loss)},
      {"last_loss", measured.last_loss, "loss of the last step", fmt::format("{:.4f}", measured.last_loss)}};
  if (const auto predicted = job ? std::nullopt : known_prediction(plan, config))
    report.figures.push_back(figure_of(*predicted, seconds));
  if (measured.again > 0)
    report.figures.push_back(
        {"steps_again", static_cast<double>(measured.again), "steps that ran again",
         fmt::format("{} of {}, as rows of experts had no room", measured.again, measured.seconds.size())});
  if (const auto load = measured.load_max_over_mean)
    report.figures.push_back({"load_max_over_mean", *load, "largest load of an expert over the mean",
                              fmt::format("{:.2f}, worst layer of the last step", *load)});
  const int64_t expert_ranks = config->parallel.expert_model_parallel_size;
  if (!measured.expert_counts.empty() && expert_ranks > 1) {
    const int64_t slots = replica_slots(config->model.moe, expert_ranks);
    const RankLoad load = rank_load(measured.expert_counts, expert_ranks, slots);
    report.figures.push_back(
        {"rank_load_max_over_mean", load.balanced, "largest load of a rank over the mean",
         fmt::format("{:.2f}{}, likewise", load.balanced,
                     slots > 0 ? fmt::format(" with replicas, {:.2f} without", load.at_home) : "")});
  }
  return report;
}

// The settings that must be equal for all processes of a job.
Settings settings_of_call(const RunConfig& given, const StepArgs& state) {
  Settings settings = settings_of(given);
  settings.emplace_back("steps", std::to_string(state.steps));
  settings.emplace_back("kernels", state.kernels ? "true" : "false");
  settings.emplace_back(kPeersVariable, value_of(peers_allowed()));
  settings.emplace_back("version of witan", WITAN_VERSION);
  return settings;
}

// The processes of the job, once they have met and compared settings; nothing for a single process.
std::unique_ptr<ProcessWorld> meet(const RunConfig& given, const StepArgs& state, const std::optional<Launch>& launch) {
  if (!launch) return nullptr;
  const int64_t here = ranks_of_process(given, *launch);
  const double seconds = given.parallel.deadline_seconds();
  auto world =
      std::make_unique<ProcessWorld>(*launch, ProcessWorldOptions{seconds, seconds, static_cast<int>(here), {}});
  world->run([&](int rank) { require_same_settings(*world, rank, settings_of_call(given, state)); });
  return world;
}

// The configuration of a run with the measured steps, which reads no text.
RunConfig measured_config(RunConfig given, const StepArgs& state) {
  given.train.train_iters = kWarmUpSteps + state.steps;
  given.train.sample_tokens = given.train.sample_interval = 0;
  apply_skew(given.model.moe, state.skew);
  return given;
}

ResolvedConfig resolve_here(const RunConfig& given, const std::optional<LaunchedRanks>& launched) {
  Facts facts = facts_of_machine();
  facts.launched = launched;
  if (given.model.vocab_size == 0) facts.vocabulary = expected_vocabulary(given.data);
  return resolve(given, facts);
}

ExitCode bench_step(Context& context, const RunConfig& given, const StepArgs& state,
                    const std::optional<Launch>& launch) {
  auto processes = meet(given, state, launch);
  auto launched = launched_ranks(processes.get(), launch);
  const ResolvedConfig expected = resolve_here(given, launched);
  const int64_t local_ranks = processes ? processes->local_size() : expected->parallel.ranks;
  require_devices(expected, processes ? std::min<int64_t>(local_ranks, cuda::devices()) : local_ranks);
  if (processes) {
    const cuda::PeerIslands peers = peers_of_job(*processes, expected);
    launched->peer_islands = peers.of_rank;
    launched->host_islands = peers.sharing_host_memory;
  }
  const ResolvedConfig config = resolve_here(given, launched);
  const Plan plan = plan_of(config, nullptr);
  const int64_t usable =
      processes && config->parallel.on_gpu() ? least_gpu_memory(*processes, config) : usable_memory(config);
  std::optional<ThreadWorld> threads;
  World& world = processes ? static_cast<World&>(*processes) : threads.emplace(static_cast<int>(local_ranks));
  world.first([&] {
    require_json_file(state.json);
    require_fits(config, part_of_host(plan, config, processes.get()), usable);
    require_host_fits(part_of_host(plan, config, processes.get()), usable_host_memory());
    return "";
  });
  if (const auto slow = slow_vocabulary(*config); slow && (!launch || launch->rank == 0))
    fmt::print(context.err, "warning: {}\n", *slow);
  if (const auto crowded = too_many_threads(config->parallel, usable_cores());
      crowded && (!launch || launch->rank == 0))
    fmt::print(context.err, "warning: {}\n", *crowded);
  if (const std::string warning = binding_warning(processes.get(), launch); !warning.empty())
    fmt::print(context.err, "{}\n", warning);  // on rank 0; the output of others is discarded
  const Measured measured = run_ranks(config, world, plan, state);
  const auto job = ceilings_of_job(config, processes.get());
  processes.reset();  // lets other processes end before a GPU's ceilings are measured
  if (!launch || launch->rank == 0)
    finish_report(context, state.json, report_of(config, plan, measured, local_ranks, job));
  return ExitCode::done;
}

}  // namespace

void add_bench_step(CLI::App& bench, Context& context) {
  auto state = std::make_shared<StepArgs>();
  CLI::App* command = add_command(
      bench, context,
      {"step", "Measure whole training steps on random tokens: forward, backward, clipping, optimizer",
       "Takes the flags of `witan train` and needs no text. The time of a step is measured by the host, "
       "from its tokens to its loss; the first three steps are not counted. FLOPs are those that the "
       "kernels count, including recomputation. " +
           std::string(kListsHelp),
       "witan bench step\n"
       "witan bench step --config recipes/default.toml --steps 20 --json step.json\n"
       "witan bench step --preset megatron-moe-4b --kernels\n"
       "witan bench step --num-layers 2 --hidden-size 64 --device cpu\n"
       "witan bench step --skew 4x\n"
       "witan bench step --ranks 2 --expert-model-parallel-size 2 --skew 4x --moe-replicated-experts 4\n"
       "mpirun -n 2 witan bench step",
       Processes::all},
      [&context, state] {
        const auto launch = find_launch();
        return run_process(context, launch, [&](Context& own) {
          const GivenConfig given = state->config.read(own);
          return naming_sources(given,
                                [&] { return bench_step(own, measured_config(given.config, *state), *state, launch); });
        });
      });
  add_option(*command, "--steps", state->steps, "Number of steps to measure")
      .type_name("N")
      .range(int64_t{1}, int64_t{1} << 30)
      .show_default();
  add_flag(
      *command, "--kernels", state->kernels,
      "Also time each kernel of one more step, synchronizing after each (so they take longer than in a normal step)");
  add_skew(*command, state->skew);
  add_json_file(*command, state->json);
  state->config.add(*command);
}

}  // namespace witan::cli
