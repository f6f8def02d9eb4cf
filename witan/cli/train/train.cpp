// witan train: trains a model from text, or resumes a run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>

#include "witan/base/error.h"
#include "witan/cli/args/options.h"
#include "witan/cli/command.h"
#include "witan/cli/compat/megatron.h"
#include "witan/cli/train/job.h"
#include "witan/cli/train/start_checks.h"
#include "witan/cli/train/train_call.h"
#include "witan/convert/ledger.h"
#include "witan/train/data/mixture_data.h"
#include "witan/train/signals/signals.h"
#include "witan/train/state/run_start.h"

namespace witan::cli {
namespace {

constexpr double kMostMinutes = 1e6;

struct TrainCommandArgs {
  RunConfigArgs config;
  TrainOptions options;
};

// Embeddings belong to the tokens that they were trained with, so a new run that takes weights cannot train a tokenizer
// of its own.
void require_tokenizer(const RunConfig& config) {
  const TrainConfig& train = config.train;
  for (const auto& [key, source] : {std::pair("init_from", train.init_from), std::pair("upcycle", train.upcycle)})
    require<ConfigError>(source.empty() || !config.data.tokenizer.empty(), key, " = ", source,
                         ": the model has no tokenizer that Witan can read; give the one that it was trained with: "
                         "--tokenizer FILE");
}

// The configuration of this call and the run on disk, if there is one. Keys that identify a run must not change.
GivenConfig read_given(const Context& context, TrainCommandArgs& state) {
  GivenConfig given = state.config.read(context, state.options.fresh ? OtherRun::replace : OtherRun::keep);
  if (context.megatron) state.options.profiled = context.megatron->profiled;
  state.options.fresh ? require_other_source(given) : keep_first_weights(given);
  check_datasets(given.config.data);
  if (!given.saved || state.options.fresh) require_tokenizer(given.config);
  require<ConfigError>(state.options.fresh || given.changes.empty() || !fs::exists(given.run / kLedgerName),
                       not_resumable(given.run));
  require<ConfigError>(state.options.fresh || given.changes.empty(), "the run ", given.run.string(),
                       " was started with another configuration: ", fmt::format("{}", fmt::join(given.changes, ", ")),
                       ". Train under another name with --run NAME, or start over with --fresh");
  return given;
}

ExitCode train_command(Context& context, TrainCommandArgs& state) {
  using Voice = StopSignals::Voice;
  if (context.instead_of_training) {
    context.instead_of_training(read_given(context, state), state.options);
    return ExitCode::done;
  }
  const auto supervised = find_supervised();
  if (supervised) {
    state.options = options_of(state.options, *supervised);
    context.supervised_by = supervised->call;
  }
  const auto launch = find_launch();
  require<UsageError>(!launch || !state.options.dry_run,
                      "--dry-run looks at the files of one process: run it without the launcher");
  const bool is_rank_zero = !launch || launch->rank == 0;
  // Signals end the process before training has started and after it has ended.
  const StopSignals signals(StopSignals::Answer::end, is_rank_zero ? Voice::loud : Voice::silent);
  return run_process(context, launch, [&](Context& own) {
    GivenConfig given = read_given(own, state);
    if (supervised) lay_out(given, *supervised);
    return naming_sources(given, [&] { return run_training(own, state.options, given, launch, context.err); });
  });
}

}  // namespace

void add_train(CLI::App& app, Context& context) {
  auto state = std::make_shared<TrainCommandArgs>();
  CLI::App* command =
      add_command(app, context,
                  {"train", "Train a model from text, or resume a run",
                   "Without options, trains a small MoE on English text for some minutes. Ctrl-C saves the run, and "
                   "the same command resumes it. " +
                       std::string(kListsHelp),
                   "witan train\n"
                   "witan train --data my.txt --run mine\n"
                   "witan train --config recipes/default.toml --train-iters 1000 --lr 1e-3\n"
                   "witan train --preset gpt2-124m --data my.txt --tokenizer tokenizer.json --run gpt2\n"
                   "witan train --mesh replicate=2,shard=2 --micro-batch-size 2 --deterministic\n"
                   "witan train --mesh tensor=2,replicate=2 --run tensor\n"
                   "witan train @recipes/megatron/dense.args --num-layers 2 --hidden-size 64 --vocab-size 4096 \\\n"
                   "  --seq-length 128 --lr-warmup-iters 20 --train-iters 200\n"
                   "witan train --run recorded --record-routes routes\n"
                   "witan train --run solved --init-from model-folder --sft --packing none --data problems.jsonl \\\n"
                   "  --seq-length 512 --objective policy --rollouts --reward number --global-batch-size 64 --lr 1e-6\n"
                   "mpirun -n 2 witan train --run processes\n"
                   "witan train --fresh\n"
                   "witan train --data my.txt --run mine --dry-run",
                   Processes::all},
                  [state, &context] { return train_command(context, *state); });
  add_flag(*command, "--fresh", state->options.fresh, "Archive the run and start over");
  add_flag(*command, "--dry-run", state->options.dry_run,
           "Do everything up to the first step but write nothing: check configuration, data, memory and disk, and "
           "predict the time; the exit code is that of what would fail");
  add_option(*command, "--max-minutes", state->options.max_minutes,
             "Give a new run that is predicted to take longer on this machine fewer steps, with a schedule to match; a "
             "resumed run keeps its length (0: no limit)")
      .range(0.0, kMostMinutes)
      .show_default()
      .type_name("N");
  add_option(*command, "--debug-rank", state->options.debug_ranks,
             "Let this rank (or several: 1,2) print how to attach gdb, and wait for it before it starts")
      .delimiter(',')
      .one_argument()
      .type_name("RANK");
  add_option(*command, "--trace-steps", state->options.trace_steps,
             "Trace these steps, such as 3:5, into trace.json in the run's folder, for ui.perfetto.dev")
      .type_name("FIRST:LAST");
  state->config.add(*command);
}

}  // namespace witan::cli
