#include "witan/cli/args/options.h"

#include <CLI/CLI.hpp>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::cli {

Option Option::type_name(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

Option Option::group(const std::string& name) const {
  option_->group(name);
  return *this;
}

Option Option::show_default() const {
  option_->capture_default_str();
  return *this;
}

Option Option::required() const {
  option_->required();
  return *this;
}

// CLI11 would add descriptions of checks to the type's name.
Option Option::range(int64_t least, int64_t most) const {
  const CLI::Range in_range(least, most);
  option_->check([in_range](const std::string& text) {
    const size_t first = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
    const bool digits = text.size() > first && text.find_first_not_of("0123456789", first) == std::string::npos;
    const std::string wrong = in_range(text);  // the same error for words
    return wrong.empty() || digits ? wrong : cat(clipped(text), " is not a whole number");
  });
  return *this;
}

Option Option::range(double least, double most) const {
  option_->check(CLI::Range(least, most).description(""));
  return *this;
}

Option Option::one_of(const std::vector<std::string>& values) const {
  option_->check(CLI::IsMember(values).description(""));
  return type_name(CLI::detail::join(values, "|"));
}

Option Option::needs(Option other) const {
  option_->needs(other.option_);
  return *this;
}

Option Option::excludes(Option other) const {
  option_->excludes(other.option_);
  return *this;
}

Option Option::delimiter(char letter) const {
  option_->delimiter(letter);
  return *this;
}

Option Option::one_argument() const {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::optional_value() const {
  option_->expected(0, 1);
  return *this;
}

bool Option::given() const {
  return option_->count() > 0;
}

Option add_option(CLI::App& command, const std::string& name, std::string& value, const std::string& help) {
  return Option(command.add_option(name, value, help));
}

Option add_option(CLI::App& command, const std::string& name, int& value, const std::string& help) {
  return Option(command.add_option(name, value, help));
}

Option add_option(CLI::App& command, const std::string& name, int64_t& value, const std::string& help) {
  return Option(command.add_option(name, value, help));
}

Option add_option(CLI::App& command, const std::string& name, uint64_t& value, const std::string& help) {
  return Option(command.add_option(name, value, help));
}

Option add_option(CLI::App& command, const std::string& name, double& value, const std::string& help) {
  return Option(command.add_option(name, value, help));
}

Option add_option(CLI::App& command, const std::string& name, std::vector<int>& value, const std::string& help) {
  return Option(command.add_option(name, value, help));
}

Option add_option(CLI::App& command, const std::string& name, std::vector<std::string>& value,
                  const std::string& help) {
  return Option(command.add_option(name, value, help));
}

Option add_flag(CLI::App& command, const std::string& name, bool& value, const std::string& help) {
  return Option(command.add_flag(name, value, help));
}

Option add_flag(CLI::App& command, const std::string& name, const std::string& help) {
  return Option(command.add_flag(name)->description(help));
}

}  // namespace witan::cli
