// witan config: shows a configuration with the source of every value, and the differences between two.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/recipes.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/config/differences.h"
#include "witan/cli/runs/text_figures.h"
#include "witan/cli/train/planning.h"
#include "witan/cli/train/start_checks.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/train/config/resolve.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

struct ShowArgs {
  RunConfigArgs config;
  bool changed = false, resolved = false, json = false;
};

struct ShownKey {
  std::string section, key, value, source;
  nlohmann::ordered_json json;  // the value as json_value() has it
  bool is_changed = false;      // differs from Witan's default
};

// Resolves the configuration as `witan train` would on this machine.
ResolvedConfig resolve_here(const GivenConfig& given) {
  const auto tokenizer = given.saved ? run_tokenizer(given.config) : std::nullopt;
  const bool of_weights = !given.config.train.init_from.empty() && given.config.data.tokenizer.empty();
  Facts facts = facts_of_machine();
  facts.vocabulary = tokenizer    ? tokenizer->vocab_size()
                     : of_weights ? given.config.model.vocab_size
                                  : expected_vocabulary(given.config.data);
  return resolve(given.config, facts);
}

std::vector<ShownKey> keys_to_show(const GivenConfig& given, bool resolved) {
  RunConfig values = given.config, defaults;
  std::vector<Decision> decisions;
  if (resolved) {
    const ResolvedConfig config = resolve_here(given);
    decisions = config.decisions();
    values = *config;
  }
  const Fields fields = values.fields(), usual = defaults.fields();
  std::vector<ShownKey> keys;
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto decision = std::ranges::find(decisions, fields[i].name, &Decision::key);
    keys.push_back({fields[i].section, fields[i].name, fields[i].text(),
                    decision == decisions.end() ? given.place(fields[i].name) : "chosen: " + decision->reason,
                    json_value(fields[i]), fields[i].text() != usual[i].text()});
  }
  return keys;
}

// Prints sources as comments, so that the output is a file for --config.
std::string toml_of(const std::vector<ShownKey>& keys) {
  size_t widest = 0;
  constexpr size_t kMostAligned = 48;  // comments of longer lines are not aligned
  for (const ShownKey& one : keys)
    if (const size_t size = one.key.size() + one.value.size() + 3; size <= kMostAligned)
      widest = std::max(widest, size);
  std::string out, section;
  for (const ShownKey& one : keys) {
    if (one.section != section) {
      section = one.section;
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    out += fmt::format("{:<{}}  # {}\n", one.key + " = " + one.value, widest, clipped(one.source, 200));
  }
  return out;
}

std::string json_of_keys(const std::vector<ShownKey>& keys) {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const ShownKey& one : keys) all[one.key] = {{"value", one.json}, {"source", replace_invalid_utf8(one.source)}};
  return all.dump(2) + "\n";
}

ExitCode show(Context& context, const ShowArgs& state, const GivenConfig& given) {
  std::vector<ShownKey> keys = keys_to_show(given, state.resolved);
  if (state.changed) std::erase_if(keys, [](const ShownKey& one) { return !one.is_changed; });
  if (given.saved)
    fmt::print(context.err, "configuration of the run {}, as this command would resume it\n", given.run.string());
  else if (given.said("run"))
    fmt::print(context.err, "there is no run {} yet: this is the configuration of a new one\n", given.run.string());
  fmt::print(context.out, "{}", state.json ? json_of_keys(keys) : toml_of(keys));
  return ExitCode::done;
}

void add_config_show(CLI::App& config, Context& context) {
  const auto state = std::make_shared<ShowArgs>();
  CLI::App* command = add_command(
      config, context,
      {"show", "Show the configuration that these arguments come to, with the source of every value",
       cat("The same arguments as those of `witan train`, read in the same way: defaults, the run on disk, --preset, "
           "--config, flags. The output is TOML for --config; comments show the source of each value. ",
           kListsHelp),
       "witan config show\n"
       "witan config show --preset gpt2-124m --changed\n"
       "witan config show --run mine --lr 1e-3 --changed\n"
       "witan config show --config recipes/default.toml --resolved --json"},
      [state, &context] {
        GivenConfig given = state->config.read(context, OtherRun::leave);
        keep_first_weights(given);
        return naming_sources(given, [&] { return show(context, *state, given); });
      });
  add_flag(*command, "--changed", state->changed, "Only keys whose values are not the defaults");
  add_flag(*command, "--resolved", state->resolved,
           "Resolve values that depend on this machine, the launcher or the data, and print the reasons");
  add_flag(*command, "--json", state->json, "Print JSON: value and source of each key");
  state->config.add(*command);
}

struct DiffArgs {
  std::string a, b;
  std::string runs_folder = "runs";
  bool json = false;
};

struct NamedConfig {
  std::string label;
  RunConfig config;
};

bool is_preset(const std::string& name) {
  const auto all = presets();
  return std::ranges::find(all, name, &Preset::name) != all.end();
}

NamedConfig from_preset(const std::string& name) {
  NamedConfig named{"preset " + name, {}};
  const std::set<std::string> keys = parse_toml(named.config.fields(), find_preset(name).toml, named.label);
  expand_mesh(named.config.parallel, keys, named.label);
  return named;
}

NamedConfig from_file(const std::string& path) {
  NamedConfig named{path, {}};
  const std::set<std::string> keys = parse_toml(named.config.fields(), read_recipe(path, ""), path);
  expand_mesh(named.config.parallel, keys, path);
  return named;
}

NamedConfig from_run(const fs::path& runs_folder, const std::string& name) {
  const auto saved = saved_config(find_run(runs_folder, name));
  require<ConfigError>(saved.has_value(), "the run ", clipped(name), " has no configuration");
  return {"run " + name, *saved};
}

// Reads the configuration that `name` means: a file if it looks like a path, else a run, else a preset. The prefixes
// "run:", "preset:" and "file:" decide.
NamedConfig named_config(const fs::path& runs_folder, const std::string& text) {
  const auto after = [&](const char* prefix) {
    return text.starts_with(prefix) ? std::optional(text.substr(std::string_view(prefix).size())) : std::nullopt;
  };
  if (const auto name = after("run:")) return from_run(runs_folder, *name);
  if (const auto name = after("preset:")) return from_preset(*name);
  if (const auto path = after("file:")) return from_file(*path);
  if (text == "defaults") return {"defaults", {}};
  const auto runs = list_runs(runs_folder);
  if (std::ranges::find(runs, text) != runs.end()) return from_run(runs_folder, text);
  if (is_preset(text)) return from_preset(text);
  std::error_code error;
  if (text.ends_with(".toml") || fs::is_regular_file(text, error)) return from_file(text);
  std::vector<std::string> names = runs;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  throw UsageError(cat(clipped(text), " is not a run in ", runs_folder.string(), ", no preset and no file",
                       suggestion(text, names), "; `witan runs` lists runs, `witan help train` presets"));
}

ExitCode diff(Context& context, const DiffArgs& args) {
  require<UsageError>(!args.a.empty() && !args.b.empty(), "witan config diff: give two configurations to compare",
                      args.a.empty() ? "" : cat(", ", clipped(args.a), " and another one"),
                      ": names of runs or presets, TOML files, or `defaults`");
  const NamedConfig a = named_config(args.runs_folder, args.a), b = named_config(args.runs_folder, args.b);
  const std::vector<KeyDifference> found = differing_keys({a.config, b.config});
  if (args.json) {
    nlohmann::ordered_json keys = nlohmann::ordered_json::object();
    for (const KeyDifference& one : found) keys[one.key] = one.json;
    fmt::print(context.out, "{}\n", keys.dump(2));
    return ExitCode::done;
  }
  if (found.empty()) fmt::print(context.err, "{} and {} do not differ\n", clipped(a.label), clipped(b.label));
  if (found.empty()) return ExitCode::done;
  constexpr size_t kWidest = 60;
  std::vector<std::vector<std::string>> rows = {{"key", clipped(a.label, kWidest), clipped(b.label, kWidest)}};
  for (const KeyDifference& one : found)
    rows.push_back({one.key, clipped(one.values[0], kWidest), clipped(one.values[1], kWidest)});
  fmt::print(context.out, "{}", text_table(rows, {}));
  return ExitCode::done;
}

void add_config_diff(CLI::App& config, Context& context) {
  const auto args = std::make_shared<DiffArgs>();
  CLI::App* command = add_command(
      config, context,
      {"diff", "Show the keys in which two configurations differ",
       "Each is the name of a run, of a preset, a TOML file, or `defaults`; where a name could be several of these, "
       "run:NAME, preset:NAME and file:PATH say which.",
       "witan config diff base tuned\n"
       "witan config diff defaults preset:gpt2-124m\n"
       "witan config diff recipes/default.toml mine.toml --json"},
      [&context, args] { return diff(context, *args); });
  add_option(*command, "a", args->a, "The one").type_name("");
  add_option(*command, "b", args->b, "The other").type_name("");
  add_runs_folder(*command, args->runs_folder);
  add_flag(*command, "--json", args->json, "Print JSON: of each key both values");
}

}  // namespace

void add_config(CLI::App& app, Context& context) {
  CLI::App* const config =
      add_group(app, {"config", "Show a configuration with the source of every value, or the difference of two", "",
                      "witan config show --preset gpt2-124m --changed\nwitan config diff base tuned"});
  add_config_show(*config, context);
  add_config_diff(*config, context);
}

}  // namespace witan::cli
