#include "witan/cli/commands.h"

#include <algorithm>

namespace witan::cli {
namespace {

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
