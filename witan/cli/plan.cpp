// witan plan: what a run would need, before it runs.
#include "witan/planner/plan.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "witan/base/threads.h"
#include "witan/cli/commands.h"
#include "witan/cli/config_args.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/resolve.h"
#include "witan/train/saved_config.h"

namespace witan::cli {
namespace {

struct State {
  RunConfig config;
  std::optional<ConfigArgs> args;
};

ExitCode plan(Context& context, State& state) {
  state.args->apply();
  RunConfig& config = state.config;
  if (const auto saved = saved_config(fs::path(config.train.runs_folder) / config.train.run)) {
    config = *saved;
    state.args->apply();
  }
  const auto& data = config.data;
  const int64_t vocabulary =
      data.tokenizer.empty() ? data.bpe.vocab_size : Tokenizer::load(data.tokenizer).vocab_size();
  resolve(config, usable_cores(), vocabulary);
  config.validate();
  std::fputs(format_plan(make_plan(config)).c_str(), context.out);
  return ExitCode::done;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  auto state = std::make_shared<State>();
  CLI::App* command = add_command(app, context,
                                  {"plan", "What a run would need: parameters, FLOPs, memory and traffic",
                                   "Runs the very step that trains on a device that computes nothing.",
                                   "witan plan\n"
                                   "witan plan --num-layers 24 --hidden-size 512 --num-experts 64 --ranks 4\n"
                                   "witan plan --config recipes/default.toml --recompute-granularity full"},
                                  [state, &context] { return plan(context, *state); });
  state->args.emplace(*command, state->config.fields());
}

}  // namespace witan::cli
