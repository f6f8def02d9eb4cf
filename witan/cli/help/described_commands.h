// The commands with their options as plain values, for what is made from all of them: completions, the manual page.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace witan::cli {

// What may stand where a value is asked for.
enum class Values : uint8_t { any, files, folders, runs, words, commands };

struct DescribedOption {
  std::vector<std::string> names;  // "--lr"; of an argument without dashes its name
  std::string type;                // "FILE", "true|false"; empty: a flag without a value
  std::string meaning;
  std::string group;         // heading of the help
  std::string default_text;  // empty: none
  Values values = Values::any;
  std::vector<std::string> words;  // of Values::words; of Values::files names that stand for files elsewhere
  bool is_list = false;            // of those words, separated by commas
  bool is_required = false;
  bool is_value_optional = false;  // "--swiglu" and "--swiglu false"
};

struct DescribedCommand {
  std::string name;
  std::string summary, details;
  std::string examples;                    // lines, indented by two blanks
  std::vector<DescribedOption> arguments;  // without dashes
  std::vector<DescribedOption> options;
  std::vector<DescribedCommand> commands;  // of a group of commands
};

DescribedCommand describe(const CLI::App& app);

}  // namespace witan::cli
