// witan plan: what a run would need, before it runs.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "witan/base/text.h"
#include "witan/base/threads.h"
#include "witan/cli/commands.h"
#include "witan/cli/planning.h"
#include "witan/cli/run_config.h"
#include "witan/planner/fit.h"
#include "witan/planner/layout_page.h"
#include "witan/planner/megatron_memory.h"
#include "witan/train/resolve.h"

namespace witan::cli {
namespace {

constexpr uint64_t kLeastMemory = 1'000'000;  // less is a number without its unit

struct State {
  RunConfig config;
  std::optional<ConfigArgs> args;
  std::string memory;  // of another machine; empty: of this one
  bool processes = false;
  bool json = false;
  bool layout = false;
};

ExitCode plan(Context& context, State& state) {
  const uint64_t asked = state.memory.empty() ? 0 : parse_bytes(state.memory);
  require<ConfigError>(state.memory.empty() || asked >= kLeastMemory, "--memory ", state.memory, " is ",
                       format_bytes(static_cast<double>(asked)), ": say a machine's, with its unit, as in 8GB");
  RunConfig& config = state.config;
  std::optional<Tokenizer> tokenizer;
  if (read_run_config(context, config, *state.args)) tokenizer = run_tokenizer(config);
  if (state.processes) config.parallel.ranks_per_process = 1;
  resolve(config, usable_cores(), tokenizer ? tokenizer->vocab_size() : expected_vocabulary(config.data));
  config.validate();
  if (state.layout) {
    std::fputs(format_layout(config).c_str(), context.out);
    return ExitCode::done;
  }
  const Plan plan = plan_of(config, tokenizer ? &*tokenizer : nullptr, /*balanced=*/true);
  const std::optional<Timing> timing = timing_of(plan, config, 0);
  const int64_t bytes = asked > 0 ? static_cast<int64_t>(asked) : usable_memory(config);
  std::fputs((state.json ? plan_json : format_plan)(plan, bytes, timing).c_str(), context.out);
  if (!state.json) std::fputs(format_megatron_memory(config).c_str(), context.out);
  std::fflush(context.out);  // the page comes before the error
  require_fits(config, plan, bytes);
  return ExitCode::done;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  auto state = std::make_shared<State>();
  CLI::App* command = add_command(
      app, context,
      {"plan", "What a run would need: parameters, FLOPs, memory, traffic and time",
       cat("Runs the very step that trains on a device that computes nothing. Memory is told to the byte; "
           "a run that does not fit ends with exit code 8 and the nearest configuration that does. ",
           kListsHelp),
       "witan plan\n"
       "witan plan --num-layers 24 --hidden-size 512 --num-experts 64 --ranks 4 --memory 8GB\n"
       "witan plan --device cuda --ranks 8 --dtype bfloat16 --memory 141GB\n"
       "witan plan --device cuda --ranks 16 --processes --dtype bfloat16 --memory 80GB\n"
       "witan plan --config recipes/default.toml --recompute-granularity full --json\n"
       "witan plan --ranks 8 --expert-model-parallel-size 4 --use-distributed-optimizer true --print-layout\n"
       "witan plan @recipes/megatron/dmoe_ep4.args --ranks 8"},
      [state, &context] { return plan(context, *state); });
  command->add_option("--memory", state->memory, "plan for a machine, or GPUs, with this much memory: 8GB, 8GiB, 800MB")
      ->type_name("SIZE");
  command->add_flag("--processes", state->processes,
                    "plan ranks that are processes, as a launcher starts them, instead of threads of one");
  CLI::Option* json = command->add_flag("--json", state->json, "print JSON");
  command
      ->add_flag("--print-layout", state->layout, "print mesh, groups and how each parameter is held, and nothing else")
      ->excludes(json);
  add_megatron_flag(*command);
  state->args.emplace(*command, state->config.fields());
}

}  // namespace witan::cli
