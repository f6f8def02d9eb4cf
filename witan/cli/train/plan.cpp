// witan plan: the memory, time and communication of a run, before it starts.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/response_file.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/command.h"
#include "witan/cli/compat/megatron.h"
#include "witan/cli/train/planning.h"
#include "witan/cli/train/start_checks.h"
#include "witan/planner/pages/layout_page.h"
#include "witan/planner/pages/plan_page.h"
#include "witan/planner/pages/search_page.h"
#include "witan/planner/search/fit.h"
#include "witan/planner/speeds/cluster.h"
#include "witan/report/progress/progress.h"
#include "witan/train/config/resolve.h"

namespace witan::cli {
namespace {

constexpr uint64_t kLeastToPlanFor = 1'000'000;  // fewer bytes: probably a number without its unit

// Flags that plan for other machines.
struct Elsewhere {
  int64_t ranks = 0, gpus = 0;  // --world-size, --gpus; 0: those of this machine
  std::string gpu;              // the GPU's name; empty: any
  int gpus_per_host = 8;
  double link = 0, network = 50;  // GB/s; 0: from the GPU's data sheet

  bool asked() const { return ranks > 0 || gpus > 0; }
};

struct PlanArgs {
  RunConfigArgs config;
  std::string memory;  // the limit, "8GB"; empty: this machine's
  Elsewhere elsewhere;
  bool processes = false;
  bool search = false;
  bool keep_micro_batch_size = false;
  bool json = false;
  bool layout = false;
};

std::optional<Cluster> cluster_of(const Elsewhere& elsewhere, bool search) {
  constexpr const char* kUsual = "h100";
  constexpr double kGiga = 1e9;
  if (elsewhere.gpu.empty() && !search) return std::nullopt;
  Cluster cluster{find_gpu(elsewhere.gpu.empty() ? kUsual : elsewhere.gpu), elsewhere.gpus_per_host,
                  elsewhere.link * kGiga, elsewhere.network * kGiga};
  if (elsewhere.link == 0) cluster.link_bytes_s = cluster.gpu.link_bytes_s;
  return cluster;
}

// Refuses a --mesh with another number of ranks, and names the missing factor.
[[noreturn]] void refuse_mesh(const std::string& mesh, int64_t has, const char* flag, int64_t ranks) {
  const auto names = [&](const char* axis) { return mesh.find(axis) != std::string::npos; };
  const bool whole = ranks % has == 0, sharded = names("replicate") || names("shard");
  const std::string more = std::to_string(whole ? ranks / has : 0);
  throw ConfigError(cat("--mesh ", mesh, " is ", counted(has, "rank"), ", of ", flag, " ", ranks, ": ",
                        !whole    ? cat("its sizes, but those of expert and expert_tensor, must multiply to ", ranks)
                        : sharded ? cat("make replicate or shard ", more, " times as large")
                                  : cat("add replicate=", more, " or shard=", more)));
}

// The given configuration with the ranks that --processes, --world-size or --gpus ask for, which override a file and
// the run on disk. Flags that say otherwise are refused.
RunConfig moved(const GivenConfig& given, const PlanArgs& state) {
  const Elsewhere& elsewhere = state.elsewhere;
  RunConfig config = given.config;
  auto& parallel = config.parallel;
  if (state.processes) parallel.ranks_per_process = 1;
  if (!elsewhere.asked()) return config;
  const auto flagged = [&](const char* key) { return given.source(key) == ValueSource::flag; };
  const bool gpus = elsewhere.gpus > 0;
  const int64_t ranks = gpus ? elsewhere.gpus : elsewhere.ranks;
  const char* const flag = gpus ? "--gpus" : "--world-size";
  if (flagged("ranks") && parallel.ranks != 0 && parallel.ranks != ranks) {
    if (given.place("ranks") == "--mesh") refuse_mesh(given.mesh, parallel.ranks, flag, ranks);
    throw ConfigError(cat(flag, " ", ranks, " and ranks = ", parallel.ranks, " differ: remove one of them"));
  }
  require<ConfigError>(!gpus || !flagged("device") || parallel.device != "cpu", "--gpus ", ranks,
                       " plans for GPUs, but device = cpu is set: use --world-size to plan CPU ranks");
  parallel.ranks = ranks;
  if (gpus) parallel.device = "cuda";
  for (int64_t rank = 0; gpus && rank < ranks; ++rank)  // GPUs reach each other's memory within a host
    parallel.peer_islands.push_back(static_cast<int>(rank / elsewhere.gpus_per_host));
  parallel.host_islands = parallel.peer_islands;
  if (parallel.ranks_per_process > 0) return config;
  if (!gpus) parallel.ranks_per_process = 1;
  if (gpus && ranks > elsewhere.gpus_per_host)  // a process for each host
    parallel.ranks_per_process = std::gcd(ranks, static_cast<int64_t>(elsewhere.gpus_per_host));
  return config;
}

// The memory limit in bytes, of the run or of each GPU, from --memory or the GPU's data sheet; nothing without either.
std::optional<int64_t> memory_elsewhere(const PlanArgs& state, const std::optional<Cluster>& cluster) {
  if (!state.memory.empty()) {
    const uint64_t asked = parse_bytes(state.memory);
    require<ConfigError>(asked >= kLeastToPlanFor, "--memory ", state.memory, " is ",
                         format_bytes(static_cast<double>(asked)),
                         ": give the memory of a machine with its unit, as in 8GB");
    return static_cast<int64_t>(asked);
  }
  return cluster ? std::optional(static_cast<int64_t>(cluster->gpu.memory_bytes)) : std::nullopt;
}

// Defaults to this machine's memory; 0: unknown.
int64_t memory_of(const ResolvedConfig& config, const PlanArgs& state, const std::optional<Cluster>& cluster) {
  if (const auto known = memory_elsewhere(state, cluster)) return *known;
  return state.elsewhere.asked() ? 0 : usable_memory(config);
}

PlanOptions options_of(const ResolvedConfig& config, const PlanArgs& state, const Tokenizer* tokenizer) {
  constexpr int64_t kFew = 16;  // up to this number the page lists ranks one by one
  PlanOptions options;
  options.balanced = true;
  options.prompt_tokens = prompt_tokens(config, tokenizer);
  options.spread = state.elsewhere.asked();
  if (config->parallel.ranks > kFew) options.ranks = PlanOptions::Ranks::by_class;
  return options;
}

// The flags that give this configuration when added to Witan's defaults. How a checkpoint is loaded is left out.
std::string full_command(const Context& context, RunConfig config) {
  config.load = {};
  return cat(context.program, " train ", flags_of(changed_keys(RunConfig(), config)));
}

// The layout flags on the command line, which a search holds fixed. A preset, a file and an @FILE describe the model
// and the machine that it was trained on, so their layouts are searched over.
std::set<std::string> held_keys(const Context& context, const GivenConfig& given) {
  std::set<std::string> listed;
  if (context.megatron)
    for (const auto& setting : context.megatron->settings)
      if (!setting.origin.starts_with(kCommandLine)) listed.insert(flag_name(setting.key));
  RunConfig config = given.config;
  std::set<std::string> held;
  for (const Field& field : config.fields()) {
    const bool searched = std::ranges::find(searched_keys(), std::string_view(field.name)) != searched_keys().end();
    if (!searched || given.source(field.name) != ValueSource::flag || listed.contains(given.place(field.name)))
      continue;
    const std::string value = field.text();
    const bool automatic = value == "\"auto\"" || (value == "0" && field.name.starts_with("expert_"));
    if (!automatic) held.insert(field.name);
  }
  return held;
}

ExitCode search(Context& context, const PlanArgs& state, const GivenConfig& from, const RunConfig& given,
                const Cluster& cluster, int64_t vocab_size, std::optional<int64_t> assumed) {
  SearchOptions options;
  options.limits = {state.elsewhere.gpus, state.elsewhere.gpus_per_host, state.keep_micro_batch_size};
  options.limits.held = held_keys(context, from);
  options.memory = memory_elsewhere(state, cluster).value();
  options.vocab_size = vocab_size;
  options.assumed_vocabulary = assumed;
  ProgressOptions shown = progress_options(context.err);
  shown.longest_silence = 3;
  Progress progress(context.err, shown);
  std::optional<TaskProgress> task;
  options.watch = [&](const char* what, int64_t done, int64_t of) {
    if (done == 0) {
      if (!progress.is_terminal()) progress.note(cat(what, " ", counted(of, "layout")));
      task.emplace(progress, what, static_cast<double>(of), "layouts");
    }
    task->update(static_cast<double>(done));
  };
  const SearchResult result = search_layouts(given, cluster, options);
  task.reset();
  const auto command = [&](const RunConfig& asked) { return full_command(context, asked); };
  const std::string page =
      state.json ? search_json(result, given, options) : format_search(result, given, cluster, options, command);
  std::fputs(page.c_str(), context.out);
  std::fflush(context.out);  // the page comes before the error
  const std::string held = options.limits.held.empty() ? "" : " with " + held_text(given, options);
  require<ConfigError>(result.possible > 0, "no layout of ", options.limits.gpus, " GPUs", held,
                       " is compatible with this model and its batch sizes; ",
                       held.empty() ? "" : "leave out what is given of a layout; with it ", nearest_gpus_text(result));
  require<OutOfMemoryError>(!result.best.empty(), "no layout of ", options.limits.gpus, " GPUs", held,
                            " was found that fits in ", format_bytes(static_cast<double>(options.memory)), " per GPU");
  return ExitCode::done;
}

// Prints the values that the configuration left to Witan, with reasons.
std::string format_decisions(const ResolvedConfig& config) {
  std::string out;
  for (const Decision& one : config.decisions())
    out += fmt::format("  {:<34} {}\n", cat(one.key, " = ", one.value), one.reason);
  return out.empty() ? out : "\nChosen automatically\n" + out;
}

// A hint about planning for GPUs, for a plain `witan plan` on a machine without any.
void hint_at_gpus(const Context& context, const PlanArgs& state, const GivenConfig& given,
                  const ResolvedConfig& config) {
  if (state.elsewhere.asked() || config->parallel.on_gpu() || given.config.parallel.device != "auto") return;
  std::fputs(
      "planned for the CPU, as this machine has no usable GPU: give --gpus N --gpu NAME to plan for N GPUs elsewhere "
      "(add --search for their best layout), --device cuda --memory SIZE for GPUs like these ranks, or --device cpu to "
      "mean it\n",
      context.err);
}

std::optional<Timing> predict(const ResolvedConfig& config, const Plan& plan, const PlanArgs& state,
                              const std::optional<Cluster>& cluster) {
  if (cluster) return timing_on(*cluster, plan, config);
  return state.elsewhere.asked() ? std::nullopt : timing_of(plan, config, 0);
}

Plan plan_watched(Context& context, const ResolvedConfig& config, PlanOptions options) {
  Progress progress(context.err, progress_options(context.err));
  std::optional<TaskProgress> task;
  options.watch = [&](int64_t done, int64_t of) {
    if (done == 0) task.emplace(progress, "planning", static_cast<double>(of), "kinds of ranks");
    task->update(static_cast<double>(done));
  };
  return make_plan(config, options);
}

ExitCode print_plan(Context& context, const PlanArgs& state, const ResolvedConfig& config, const Tokenizer* tokenizer,
                    const std::optional<Cluster>& cluster, std::optional<int64_t> assumed) {
  const int64_t bytes = memory_of(config, state, cluster);
  const PlanOptions options = options_of(config, state, tokenizer);
  Plan plan = plan_watched(context, config, options);
  plan.assumed_vocabulary = assumed;
  const std::optional<Timing> timing = predict(config, plan, state, cluster);
  std::fputs((state.json ? plan_json : format_plan)(plan, bytes, timing).c_str(), context.out);
  if (!state.json) std::fputs((format_decisions(config) + format_megatron_memory(config)).c_str(), context.out);
  std::fflush(context.out);  // the page comes before the error
  require_fits(config, plan, bytes, options);
  return ExitCode::done;
}

ExitCode plan(Context& context, const PlanArgs& state, const GivenConfig& given) {
  std::optional<Tokenizer> tokenizer;
  if (given.saved) {
    tokenizer = run_tokenizer(given.config);
    std::fputs(cat("planned for the run ", given.run.string(), ", whose configuration sets all other keys\n").c_str(),
               context.err);
  }
  const RunConfig asked = moved(given, state);
  const std::optional<Cluster> cluster = cluster_of(state.elsewhere, state.search);
  require<ConfigError>(!cluster || !asked.model.fp8() || cluster->gpu.multiplies_fp8,
                       "fp8_format = ", asked.model.fp8_format,
                       ": the kernels of products in 8 bits are made for h100 and h200, not for ",
                       cluster ? cluster->gpu.name : "", "; set fp8_format = \"none\", or plan for one of those");
  Facts facts = facts_of_machine();
  // The tokenizer of imported weights is unknown, but fits their vocabulary.
  const bool of_weights = !asked.train.init_from.empty() && asked.data.tokenizer.empty();
  facts.vocabulary = tokenizer    ? tokenizer->vocab_size()
                     : of_weights ? asked.model.vocab_size
                                  : expected_vocabulary(asked.data);
  const bool known = tokenizer || !asked.data.tokenizer.empty() || asked.model.vocab_size > 0;
  const std::optional<int64_t> assumed = known ? std::nullopt : facts.vocabulary;
  if (state.search) return search(context, state, given, asked, *cluster, *facts.vocabulary, assumed);
  const ResolvedConfig config = resolve(asked, facts);
  for (const std::string& warning : config_warnings(given, config)) std::fputs((warning + "\n").c_str(), context.err);
  hint_at_gpus(context, state, given, config);
  if (!state.elsewhere.asked() && state.memory.empty())  // otherwise the plan is for another machine
    if (const auto threads = too_many_threads(config->parallel, usable_cores()))
      fmt::print(context.err, "warning: {}\n", *threads);
  if (state.layout) {
    std::fputs((state.json ? layout_json : format_layout)(config, assumed).c_str(), context.out);
    return ExitCode::done;
  }
  return print_plan(context, state, config, tokenizer ? &*tokenizer : nullptr, cluster, assumed);
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  auto state = std::make_shared<PlanArgs>();
  CLI::App* command = add_command(
      app, context,
      {"plan", "Plan a run before it starts: parameters, FLOPs, memory, communication and time",
       cat("Runs the real training step on a meta device, which computes nothing. Memory is exact to the byte; if the "
           "run does not fit, the exit code is 8 and the nearest configuration that fits is shown. ",
           kListsHelp),
       "witan plan\n"
       "witan plan --num-layers 24 --hidden-size 512 --num-experts 64 --ranks 2 --memory 24GB\n"
       "witan plan --device cuda --ranks 8 --global-batch-size 32 --dtype bfloat16 --memory 141GB\n"
       "witan plan --device cuda --ranks 16 --processes --global-batch-size 64 --dtype bfloat16 --memory 80GB\n"
       "witan plan --config recipes/default.toml --recompute-granularity full --json\n"
       "witan plan --preset mixtral-8x7b --gpus 64 --gpu h100 --mesh shard=64,expert=8 \\\n"
       "  --recompute-granularity full\n"
       "witan plan @recipes/megatron/mixtral.args --gpus 1024 --gpu h100 --global-batch-size 1024\n"
       "witan plan @recipes/megatron/mixtral.args --search --gpus 64 --memory 80GB\n"
       "witan plan --mesh replicate=2,shard=2,expert=4 --micro-batch-size 2 --print-layout\n"
       "witan plan @recipes/megatron/dmoe_ep4.args --gpus 8 --gpu h100"},
      [state, &context] {
        GivenConfig given = state->config.read(context, OtherRun::leave);
        keep_first_weights(given);
        return naming_sources(given, [&] { return plan(context, *state, given); });
      });
  add_option(*command, "--memory", state->memory,
             "Memory of the machine, or of each GPU, to plan for: 8GB, 8GiB, 800MB")
      .type_name("SIZE");
  add_flag(*command, "--processes", state->processes,
           "Plan each rank as a process, as started by a launcher, not as a thread");
  Elsewhere& elsewhere = state->elsewhere;
  const Option world =
      add_option(*command, "--world-size", elsewhere.ranks,
                 "Plan for N ranks, each a process, on other hosts; --memory is then the memory of one rank")
          .type_name("N")
          .range(1, 1 << 16);
  const Option gpus =
      add_option(*command, "--gpus", elsewhere.gpus,
                 "Plan for N GPUs on other hosts, one rank per GPU; ranks of one host are threads of one process")
          .type_name("N")
          .range(1, 1 << 16)
          .excludes(world);
  add_option(*command, "--gpu", elsewhere.gpu, "GPU model, whose data sheet sets memory and speed: " + gpu_names())
      .type_name("NAME")
      .needs(gpus);
  add_option(*command, "--gpus-per-host", elsewhere.gpus_per_host, "GPUs per host [8]")
      .type_name("N")
      .range(1, 1 << 16)
      .needs(gpus);
  add_option(*command, "--link-bandwidth", elsewhere.link,
             "GB/s from a GPU to the others of its host [from the data sheet]")
      .type_name("GB/S")
      .range(0.01, 1e5)
      .needs(gpus);
  add_option(*command, "--network-bandwidth", elsewhere.network, "GB/s from a GPU to other hosts [50]")
      .type_name("GB/S")
      .range(0.01, 1e5)
      .needs(gpus);
  add_flag(*command, "--json", state->json, "Print JSON");
  const Option layout = add_flag(*command, "--print-layout", state->layout,
                                 "Print only the layout: mesh, groups, sharding and the placement of each parameter");
  const Option search = add_flag(*command, "--search", state->search,
                                 "Rank the layouts of --gpus that fit by predicted step time [--gpu h100]; flags of a "
                                 "layout given with it are held fixed")
                            .needs(gpus)
                            .excludes(layout);
  add_flag(*command, "--keep-micro-batch-size", state->keep_micro_batch_size,
           "Search only with the given micro-batch size, not with smaller ones")
      .needs(search);
  state->config.add(*command);
}

}  // namespace witan::cli
