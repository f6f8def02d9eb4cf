// The commands, each in a file of its name, and what they have in common. To add one: a line here, a line in
// command.cpp, and its file.
//
// Data goes to stdout, messages go to stderr: `witan generate x > text` writes only the text.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "witan/base/error.h"

namespace CLI {
class App;
}

namespace witan::cli {

struct GivenConfig;   // args/run_config.h
struct MegatronLine;  // compat/megatron.h
struct TrainOptions;  // train/train_call.h

// The streams that a command reads and writes. Tests use memory streams.
struct Context {
  std::FILE* in = stdin;
  std::FILE* out = stdout;
  std::FILE* err = stderr;
  ExitCode code = ExitCode::done;  // what the command that ran returned
  std::string program = "witan";   // the name it was called by, for commands that messages suggest
  std::string supervised_by = {};  // the words before `train` in such commands: "run --ranks 4 --", or none
  std::shared_ptr<const MegatronLine> megatron = nullptr;  // the Megatron-LM command line, if it is one
  // If set, a call of `train` is only read and passed to this function; nothing is trained.
  std::function<void(const GivenConfig&, const TrainOptions&)> instead_of_training = nullptr;
};

// How a command behaves if a launcher starts several processes of it.
enum class Processes : uint8_t {
  first,  // rank 0 runs it; the others have nothing to do
  all,    // all processes run it as one job
  one,    // it is refused: the result of a single process would be misleading
};

struct CommandText {
  std::string name;
  std::string summary;   // one line, in the list of commands
  std::string details;   // more lines, in the command's own help; may be empty
  std::string examples;  // lines, shown last in the command's own help; may be empty
  Processes processes = Processes::first;
};

// Adds a command to `app`, or to another command. `action` runs after the whole command line is parsed; if a subcommand
// was given, the subcommand's action runs instead. run() maps errors to messages and exit codes.
CLI::App* add_command(CLI::App& app, Context& context, const CommandText& text, std::function<ExitCode()> action);
// A command that only groups subcommands: `witan tokenizer train`. One of them must be given.
CLI::App* add_group(CLI::App& app, const CommandText& text);

void add_bench(CLI::App& app, Context& context);
void add_chat(CLI::App& app, Context& context);
void add_completions(CLI::App& app, Context& context);
void add_config(CLI::App& app, Context& context);
void add_data(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_eval(CLI::App& app, Context& context);
void add_export(CLI::App& app, Context& context);
void add_generate(CLI::App& app, Context& context);
void add_import(CLI::App& app, Context& context);
void add_man(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_replay(CLI::App& app, Context& context);
void add_report(CLI::App& app, Context& context);
void add_run(CLI::App& app, Context& context);
void add_runs(CLI::App& app, Context& context);
void add_serve(CLI::App& app, Context& context);
void add_tokenizer(CLI::App& app, Context& context);
void add_train(CLI::App& app, Context& context);
void add_watch(CLI::App& app, Context& context);

// Subcommands, which their command adds.
void add_data_dedup(CLI::App& data, Context& context);
void add_data_fetch(CLI::App& data, Context& context);
void add_data_inspect(CLI::App& data, Context& context);
void add_data_merge(CLI::App& data, Context& context);
void add_data_prepare(CLI::App& data, Context& context);
void add_data_shuffle(CLI::App& data, Context& context);
void add_data_split(CLI::App& data, Context& context);
void add_data_stats(CLI::App& data, Context& context);
void add_runs_compare(CLI::App& runs, Context& context);
void add_runs_remove(CLI::App& runs, Context& context);

// All commands, in the order in which they are typically used.
void add_all(CLI::App& app, Context& context);

// Only the command of this name, if no other is needed to run it: declaring the flags of all commands takes several
// times as long as the rest of the program's start. All of them for a command that shows the others, and for any other
// word.
void add_what_runs(CLI::App& app, Context& context, std::string_view name);

}  // namespace witan::cli
