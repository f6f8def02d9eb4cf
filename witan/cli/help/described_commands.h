// The commands with their options as plain values, from which completions and the manual page are made.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace witan::cli {

// The kind of values that an option or argument takes.
enum class Values : uint8_t { any, files, folders, runs, words, commands };

struct DescribedOption {
  std::vector<std::string> names;  // "--lr"; for a positional argument its name
  std::string type;                // "FILE", "true|false"; empty: a flag without a value
  std::string meaning;
  std::string group;         // heading of the help
  std::string default_text;  // empty: none
  Values values = Values::any;
  std::vector<std::string> words;  // for Values::words; for Values::files, names that stand for files elsewhere
  bool is_list = false;            // takes several of those words, separated by commas
  bool is_required = false;
  bool is_value_optional = false;  // "--swiglu" and "--swiglu false"
};

struct DescribedCommand {
  std::string name;
  std::string summary, details;
  std::string examples;                    // lines, indented by two spaces
  std::vector<DescribedOption> arguments;  // positional ones
  std::vector<DescribedOption> options;
  std::vector<DescribedCommand> commands;  // subcommands
};

DescribedCommand describe(const CLI::App& app);

}  // namespace witan::cli
