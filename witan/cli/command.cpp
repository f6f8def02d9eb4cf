#include "witan/cli/command.h"

#include <fmt/format.h>

#include <algorithm>

#include "witan/cli/help.h"

namespace witan::cli {
namespace {

CLI::App* add(CLI::App& app, const CommandText& text) {
  const std::string details = text.details.empty() ? "" : "\n\n" + text.details;
  CLI::App* command = app.add_subcommand(text.name, text.summary + details);
  command->group("commands");
  command->get_help_ptr()->description("show this help")->group("general");
  std::string examples;
  for (size_t begin = 0; begin < text.examples.size();) {
    const size_t end = std::min(text.examples.find('\n', begin), text.examples.size());
    examples += "  " + text.examples.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  command->footer(examples.empty() ? "" : "examples:\n" + examples);
  return command;
}

}  // namespace

CLI::App* add_command(CLI::App& app, Context& context, const CommandText& text, std::function<ExitCode()> action) {
  CLI::App* command = add(app, text);
  command->callback([&context, action = std::move(action)] { context.code = action(); });
  return command;
}

CLI::App* add_group(CLI::App& app, const CommandText& text) {
  CLI::App* group = add(app, text);
  group->require_subcommand(0, 1);
  group->callback([group] {
    if (!group->get_subcommands().empty()) return;
    throw UsageError(
        fmt::format("witan {}: say which: {}", group->get_name(), fmt::join(names_of_commands(*group), ", ")));
  });
  return group;
}

}  // namespace witan::cli
