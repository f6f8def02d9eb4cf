// Options of a command, over CLI11: whose headers, which take seconds to compile, only options.cpp and the few files
// that parse a whole command line or print its help include.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace witan::cli {

// Names an option of a command, which owns it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  // What the help shows behind the option's name: "N", "FILE".
  Option type_name(const std::string& name) const;
  // The heading under which the help lists it; without one it is among the "options".
  Option group(const std::string& name) const;
  // The help shows the present value as the default.
  Option show_default() const;
  Option required() const;
  // Values outside [least, most] are refused.
  Option range(int64_t least, int64_t most) const;
  Option range(int least, int most) const { return range(int64_t{least}, int64_t{most}); }
  Option range(double least, double most) const;
  // Other values are refused. The help and completions show them in place of a type's name.
  Option one_of(const std::vector<std::string>& values) const;
  // Given without the other one, or together with it, it is refused.
  Option needs(Option other) const;
  Option excludes(Option other) const;
  // A list is one argument, its values separated by this letter, rather than several arguments.
  Option delimiter(char letter) const;
  Option one_argument() const;
  // May be given without a value.
  Option optional_value() const;
  // Whether the command line that was parsed has it.
  bool given() const;

 private:
  CLI::Option* option_;
};

// `name`: "--steps", "--text,--data", or "files" for arguments without a name. What is parsed goes to `value`, which
// must outlive the command.
Option add_option(CLI::App& command, const std::string& name, std::string& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, int& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, int64_t& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, uint64_t& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, double& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, std::vector<int>& value, const std::string& help);
Option add_option(CLI::App& command, const std::string& name, std::vector<std::string>& value, const std::string& help);
Option add_flag(CLI::App& command, const std::string& name, bool& value, const std::string& help);
// One that is looked for before the line is parsed, and is here so that the parser and the help know it.
Option add_flag(CLI::App& command, const std::string& name, const std::string& help);

}  // namespace witan::cli
