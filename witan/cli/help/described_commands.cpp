#include "witan/cli/help/described_commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>

#include "witan/cli/args/recipes.h"
#include "witan/fetch/fetch.h"

namespace witan::cli {
namespace {

std::vector<std::string> words_between(const std::string& text, char separator) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

bool has_name(const DescribedOption& option, const std::string& name) {
  return std::ranges::find(option.names, name) != option.names.end();
}

constexpr std::string_view kListEnding = ",...";

// The words of a type such as "adam|sgd", or "q_proj|k_proj,..." for a list. Some types also contain kinds of values:
// "SHARE|RATIOx|hot".
std::vector<std::string> choices_of(std::string type) {
  if (type.ends_with(kListEnding)) type.resize(type.size() - kListEnding.size());
  if (type.find('|') == std::string::npos) return {};
  constexpr std::array<std::string_view, 4> kKinds = {"FILE", "FOLDER", "RATIOx", "SHARE"};
  std::vector<std::string> words = words_between(type, '|');
  std::erase_if(words, [&](const std::string& word) { return std::ranges::find(kKinds, word) != kKinds.end(); });
  return words;
}

std::vector<std::string> names_of_presets(const std::string& command) {
  std::vector<std::string> names;
  if (command == "fetch")
    for (const fetch::FetchPreset& preset : fetch::fetch_presets()) names.push_back(preset.name);
  else
    for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

// Derives the kind of values: choices are in the type ("adam|sgd"), everything else follows from the option's name.
void find_values(DescribedOption& option, const std::string& command) {
  option.words = has_name(option, "--preset") ? names_of_presets(command) : choices_of(option.type);
  if (!option.words.empty()) {
    option.values = Values::words;
    option.is_list = option.type.ends_with(kListEnding);
  } else if (has_name(option, "--run") || has_name(option, "run") ||
             (has_name(option, "names") && (command == "compare" || command == "remove" || command == "watch"))) {
    option.values = Values::runs;
  } else if (has_name(option, "command") && (command == "help" || command == "man")) {
    option.values = Values::commands;
  } else if (option.type == "FOLDER" || has_name(option, "--runs-folder")) {
    option.values = Values::folders;
  } else if (option.type != "N" && option.type != "integer" && option.type != "number") {
    option.values = Values::files;
    if (has_name(option, "--config")) option.words = recipe_names(".toml");
  }
}

DescribedOption describe(const CLI::Option& option, const std::string& command) {
  DescribedOption described;
  for (const std::string& name : option.get_lnames()) described.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
  if (option.get_positional()) described.names = {option.get_name(true, false)};
  if (option.get_items_expected_max() > 0) described.type = option.get_type_name();
  if (described.type.empty() && option.get_items_expected_max() > 0) described.type = "VALUE";
  described.meaning = option.get_description();
  described.group = option.get_group();
  described.default_text = option.get_default_str();
  described.is_required = option.get_required();
  described.is_value_optional = option.get_expected_min() == 0;
  find_values(described, command);
  if (described.type.empty()) described.values = Values::any;
  return described;
}

}  // namespace

DescribedCommand describe(const CLI::App& app) {
  DescribedCommand command;
  command.name = app.get_name();
  const std::string description = app.get_description();
  const size_t line = std::min(description.find('\n'), description.size());
  command.summary = description.substr(0, line);
  command.details = description.substr(std::min(description.find_first_not_of('\n', line), description.size()));
  const std::string footer = app.get_footer(), title = "examples:\n";
  if (footer.starts_with(title)) command.examples = footer.substr(title.size());
  for (const CLI::Option* option : app.get_options()) {
    const bool is_negation =
        !option->get_lnames().empty() && option->get_lnames().front().starts_with("no-") && option->get_group().empty();
    if (is_negation) continue;  // its flag is listed
    (option->get_positional() ? command.arguments : command.options).push_back(describe(*option, command.name));
  }
  for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; }))
    command.commands.push_back(describe(*one));
  return command;
}

}  // namespace witan::cli
