// The format of Witan's help, and `witan help`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/cli/command.h"

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace witan::cli {

// Options in one column, their descriptions in another, wrapped to kHelpWidth columns.
inline constexpr size_t kHelpWidth = 100;
std::shared_ptr<CLI::FormatterBase> help_formatter();

// The command line of a command: "witan tokenizer train".
std::string path_of(const CLI::App& command);
std::vector<std::string> names_of_commands(const CLI::App& app);

// The help of a command: its common options, or all of them.
enum class HelpLength : bool { common, all };
std::string help_of(const CLI::App& command, HelpLength length);

void add_help(CLI::App& app, Context& context);

// A help page with control sequences that colour its headings and flags; unchanged if `colour` is false.
std::string coloured_help(const std::string& help, bool colour);

}  // namespace witan::cli
