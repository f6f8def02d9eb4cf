#include "witan/cli/args/config_args.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>

#include "witan/base/config/fields.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/cli/args/recipes.h"
#include "witan/cli/args/response_file.h"

namespace witan::cli {
namespace {

bool is_boolean(const Field& field) {
  return std::holds_alternative<bool*>(field.value);
}

}  // namespace

bool is_list(const Field& field) {
  constexpr std::array<std::string_view, 6> kLists = {
      "data", "data_path", "train_data_path", "valid_data_path", "test_data_path", "recompute_modules"};
  return std::ranges::find(kLists, field.name) != kLists.end();
}

std::string list_of(const std::vector<std::string>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

FieldFlags::FieldFlags(CLI::App& command, const Fields& fields) {
  for (const Field& field : fields) add(command, field);
}

void FieldFlags::add(CLI::App& command, const Field& field) {
  const std::string name = flag_name(field.name);
  CLI::Option* option = command.add_option(name, CLI::callback_t(), field.help);
  option->type_name(field.type_name())->group(field.section.empty() ? "configuration" : field.section);
  if (!is_boolean(field)) {
    option->default_str(field.text());
    if (is_list(field)) option->expected(CLI::detail::expected_max_vector_size);  // one or more
    flags_.push_back({field, option, nullptr});
    return;
  }
  // CLI11 hands a default_str() to a flag without a value, so that a boolean's default stands in its help instead.
  option->expected(0, 1)->description(field.help + " [" + field.text() + "]");
  CLI::Option* negation = command.add_flag("--no-" + name.substr(2));
  negation->group("")->excludes(option);  // no group: not shown
  flags_.push_back({field, option, negation});
}

std::set<std::string> FieldFlags::apply() const {
  std::set<std::string> given;
  Fields fields;
  for (const Flag& flag : flags_) fields.push_back(flag.field);
  for (const Flag& flag : flags_) {
    const bool negated = flag.negation && flag.negation->count() > 0;
    if (flag.option->count() == 0 && !negated) continue;
    const std::string text = negated               ? "false"
                             : is_list(flag.field) ? list_of(flag.option->results())
                                                   : flag.option->results().front();
    set_field(fields, flag.field.name, text.empty() && flag.negation ? "true" : text, kCommandLine);
    given.insert(flag.field.name);
  }
  return given;
}

namespace {

CLI::Option* add_preset(CLI::App& command) {
  CLI::Option* const option =
      command.add_option("--preset", CLI::callback_t(), "Configuration of a known model:" + describe_presets());
  return option->type_name("NAME")->group("configuration");
}

CLI::Option* add_file(CLI::App& command) {
  CLI::Option* const option = command.add_option(
      "--config", CLI::callback_t(),
      "TOML file with the keys below (num_layers = 4 …); recipes/NAME.toml is found from any folder");
  return option->type_name("FILE")->group("configuration");
}

}  // namespace

ConfigArgs::ConfigArgs(CLI::App& command, Fields fields)
    : fields_(std::move(fields)), preset_(add_preset(command)), file_(add_file(command)), flags_(command, fields_) {}

std::string ConfigArgs::preset() const {
  return preset_->count() > 0 ? preset_->results().front() : "";
}

std::string ConfigArgs::file() const {
  return file_->count() > 0 ? file_->results().front() : "";
}

std::set<std::string> ConfigArgs::apply_preset() const {
  if (preset_->count() == 0) return {};
  const Preset& chosen = find_preset(preset());
  return parse_toml(fields_, chosen.toml, cat("preset ", chosen.name));
}

std::set<std::string> ConfigArgs::apply_file() const {
  return file().empty() ? std::set<std::string>() : parse_toml(fields_, read_recipe(file(), "--config "), file());
}

std::map<std::string, int64_t> ConfigArgs::preset_lines() const {
  if (preset_->count() == 0) return {};
  return lines_of_keys(fields_, find_preset(preset()).toml, preset());
}

std::map<std::string, int64_t> ConfigArgs::file_lines() const {
  if (file().empty()) return {};
  return lines_of_keys(fields_, read_recipe(file(), "--config "), file());
}

}  // namespace witan::cli
