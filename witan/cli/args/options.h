// Options of a command, on top of CLI11. CLI11's headers take seconds to compile, so only options.cpp and the few files
// that parse a whole command line or print its help include them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace witan::cli {

// Refers to an option, which its command owns.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  // The word after the option's name in the help: "N", "FILE".
  Option type_name(const std::string& name) const;
  // The heading under which the help lists the option; by default "options".
  Option group(const std::string& name) const;
  // Shows the current value as the default in the help.
  Option show_default() const;
  Option required() const;
  // Values outside [least, most] are refused.
  Option range(int64_t least, int64_t most) const;
  Option range(int least, int most) const { return range(int64_t{least}, int64_t{most}); }
  Option range(double least, double most) const;
  // Other values are refused. The help and completions show them in place of a type's name.
  Option one_of(const std::vector<std::string>& values) const;
  // Refuses the option if the other one is missing (needs), or present (excludes).
  Option needs(Option other) const;
  Option excludes(Option other) const;
  // A list is one argument, its values separated by this letter, rather than several arguments.
  Option delimiter(char letter) const;
  Option one_argument() const;
  // The option may be given without a value.
  Option optional_value() const;
  // Whether the parsed command line has the option.
  bool given() const;

 private:
  CLI::Option* option_;
};

// `name`: "--steps", "--text,--data", or "files" for positional arguments. The parsed value is stored in `value`, which
// must outlive the command.
Option add_option(CLI::App& command, const std::string& name, std::string& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, int& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, int64_t& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, uint64_t& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, double& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, std::vector<int>& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, std::vector<std::string>& value, const std::string& help);
Option add_flag(CLI::App& command, const std::string& name, bool& value, const std::string& help);
// A flag that is evaluated before the command line is parsed, and declared so that the parser and the help know it.
Option add_flag(CLI::App& command, const std::string& name, const std::string& help);

}  // namespace witan::cli
