// witan run: starts the ranks of `witan train` as processes of this host, and keeps the run going when some are lost.
#include <memory>

#include "witan/cli/args/options.h"
#include "witan/cli/command.h"
#include "witan/cli/run.h"
#include "witan/cli/supervise/supervisor.h"
#include "witan/cli/train/train_call.h"
#include "witan/comm/processes/launch.h"

namespace witan::cli {
namespace {

struct RunCommandArgs {
  SuperviseOptions options;
  std::vector<std::string> words;
};

constexpr const char* kTrainWords =
    "give `train` and its flags after --, as in `witan run --ranks 4 -- train --run mine`";

// Refuses options of `train` that only make sense without a supervisor.
void check_options(const TrainOptions& options) {
  require<UsageError>(!options.dry_run, "--dry-run writes nothing that could be supervised: call `witan train` itself");
  require<UsageError>(options.debug_ranks.empty(),
                      "--debug-rank: processes that wait for a debugger have no terminal under `witan run`: call "
                      "`witan train --ranks N` itself, or use another launcher");
}

// Refuses contradicting numbers of ranks of `run` and `train`.
void check_ranks(const SuperviseOptions& options, const GivenConfig& given) {
  const int64_t ranks = given.config.parallel.ranks;
  require<UsageError>(options.ranks == 0 || ranks == 0 || ranks == options.ranks || !given.said("ranks"), "--ranks ",
                      options.ranks, " of `run`, but ranks = ", ranks, " of `train` (", given.place("ranks"),
                      "): leave one of them out");
}

// Reads the call of `train` as `witan train` would, so that mistakes are reported before any process starts. Nothing if
// the call ended there; context.code says why.
std::optional<GivenConfig> read_call(Context& context, const RunCommandArgs& args) {
  std::optional<GivenConfig> read;
  char* text = nullptr;
  size_t size = 0;
  std::FILE* said = ::open_memstream(&text, &size);
  require<IoError>(said != nullptr, "out of memory");
  Context inner = context;
  inner.err = said;
  inner.instead_of_training = [&](const GivenConfig& given, const TrainOptions& options) {
    check_options(options);
    check_ranks(args.options, given);
    read = given;
  };
  std::vector<const char*> argv = {context.program.c_str()};
  for (const std::string& word : args.words) argv.push_back(word.c_str());
  const int code = cli::run(static_cast<int>(argv.size()), argv.data(), inner);
  std::fclose(said);
  // Messages about a valid call are dropped, since the ranks print them again.
  if (!read || code != 0) std::fputs(text, context.err);
  std::free(text);
  context.code = static_cast<ExitCode>(code);
  return code == 0 ? std::move(read) : std::nullopt;
}

ExitCode run_command(Context& context, const RunCommandArgs& args) {
  require<UsageError>(
      !find_process(),
      "witan run starts its ranks itself, but a launcher started several processes of it: leave out one "
      "of the two; `witan train` under the launcher resumes when it is started again");
  require<UsageError>(!args.words.empty() && args.words.front() == "train", "witan run: ", kTrainWords);
  const auto given = read_call(context, args);
  if (!given) return context.code;
  return naming_sources(
      *given, [&] { return Supervisor(args.options, args.words, given->config, context.program, context.err).run(); });
}

}  // namespace

void add_run(CLI::App& app, Context& context) {
  const auto args = std::make_shared<RunCommandArgs>();
  CLI::App* command = add_command(
      app, context,
      {"run", "Train with ranks as processes, and continue when some are lost",
       "`witan run [--flags] -- train ...` starts the ranks of `witan train` as processes of this host, one each. When "
       "one of them is killed, hangs or "
       "fails, the others resume from the last checkpoint in a layout for fewer ranks: the same batches in the same "
       "order. Mistakes of the configuration end the run; so does Ctrl-C, which is passed on. SIGHUP (kill -HUP) saves "
       "the run and starts it with all ranks again.",
       "witan run --ranks 2 -- train --run mine\n"
       "witan run --ranks 4 --regrow 10 -- train --data my.txt --global-batch-size 16 --save-interval 50\n"
       "witan run --max-restarts 10 --restart-window 30 -- train --mesh replicate=2",
       Processes::all},
      [&context, args] { return run_command(context, *args); });
  SuperviseOptions& options = args->options;
  add_option(*command, "train", args->words, "`train` and its flags, after --").required().type_name("");
  add_option(*command, "--ranks", options.ranks, "Ranks, one process each (default: as configured)")
      .type_name("N")
      .range(1, 4096);
  add_option(*command, "--min-ranks", options.min_ranks, "If fewer ranks are left, restart all of them")
      .type_name("N")
      .range(1, 4096)
      .show_default();
  add_option(*command, "--max-restarts", options.max_restarts, "Most restarts after failures, within --restart-window")
      .type_name("N")
      .range(0, 1'000'000)
      .show_default();
  add_option(*command, "--restart-window", options.window_minutes,
             "Minutes after which a restart no longer counts (0: all count)")
      .type_name("MINUTES")
      .range(0.0, 1e6)
      .show_default();
  add_option(*command, "--regrow", options.regrow_minutes,
             "Minutes after which lost ranks are tried again: the run is saved and restarted with all ranks (0: only "
             "on SIGHUP)")
      .type_name("MINUTES")
      .range(0.0, 1e6)
      .show_default();
}

}  // namespace witan::cli
