#include "witan/cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "witan/cli/help.h"
#include "witan/comm/processes/launch.h"

namespace witan::cli {
namespace {

CLI::App* add(CLI::App& app, const CommandText& text) {
  const std::string details = text.details.empty() ? "" : "\n\n" + text.details;
  CLI::App* command = app.add_subcommand(text.name, text.summary + details);
  command->group("commands");
  command->get_help_ptr()->description("Show this help")->group("general");
  command->set_help_all_flag("--help-all", "Show this help with every flag")->group("");
  std::string examples;
  for (size_t begin = 0; begin < text.examples.size();) {
    const size_t end = std::min(text.examples.find('\n', begin), text.examples.size());
    examples += "  " + text.examples.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  command->footer(examples.empty() ? "" : "examples:\n" + examples);
  return command;
}

// Whether this process runs the command. It does unless a launcher started several processes and the command is not a
// joint one: then only rank 0 does, or, if the command needs a single process, rank 0 refuses it.
bool runs_here(Context& context, const CLI::App& command, Processes processes) {
  const auto process = processes == Processes::all ? std::nullopt : find_process();
  if (!process) return true;
  const std::string path = path_of(command);
  if (processes == Processes::one) {
    require<UsageError>(
        process->rank != 0, path, " runs in a single process, but a launcher started ", process->size,
        ": run it without the launcher, or use `witan bench step` to measure steps of all these processes");
    context.code = ExitCode::usage;
    return false;
  }
  if (process->rank == 0) return true;
  std::fputs(
      cat(path, ": only rank 0 does this; process ", process->rank, " of ", process->size, " has nothing to do\n")
          .c_str(),
      context.err);
  return false;
}

struct NamedCommand {
  std::string_view name;
  void (*add)(CLI::App& app, Context& context);
  bool shows_others = false;
};

constexpr NamedCommand kCommands[] = {{"doctor", add_doctor},
                                      {"data", add_data},
                                      {"tokenizer", add_tokenizer},
                                      {"import", add_import},
                                      {"config", add_config},
                                      {"plan", add_plan},
                                      {"train", add_train},
                                      {"run", add_run},
                                      {"eval", add_eval},
                                      {"generate", add_generate},
                                      {"chat", add_chat},
                                      {"serve", add_serve},
                                      {"export", add_export},
                                      {"report", add_report},
                                      {"runs", add_runs},
                                      {"watch", add_watch},
                                      {"replay", add_replay},
                                      {"bench", add_bench},
                                      {"completions", add_completions, true},
                                      {"man", add_man, true}};

}  // namespace

CLI::App* add_command(CLI::App& app, Context& context, const CommandText& text, std::function<ExitCode()> action) {
  CLI::App* command = add(app, text);
  command->callback([&context, command, processes = text.processes, action = std::move(action)] {
    if (!command->get_subcommands().empty()) return;  // the subcommand's own action runs
    if (runs_here(context, *command, processes)) context.code = action();
  });
  return command;
}

CLI::App* add_group(CLI::App& app, const CommandText& text) {
  CLI::App* group = add(app, text);
  group->require_subcommand(0, 1);
  group->callback([group] {
    if (!group->get_subcommands().empty()) return;
    throw UsageError(
        fmt::format("witan {}: give a subcommand: {}", group->get_name(), fmt::join(names_of_commands(*group), ", ")));
  });
  return group;
}

void add_all(CLI::App& app, Context& context) {
  for (const NamedCommand& command : kCommands) command.add(app, context);
}

void add_what_runs(CLI::App& app, Context& context, std::string_view name) {
  const auto* const command = std::ranges::find(kCommands, name, &NamedCommand::name);
  if (command == std::end(kCommands) || command->shows_others)
    add_all(app, context);
  else
    command->add(app, context);
}

}  // namespace witan::cli
