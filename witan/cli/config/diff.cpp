// witan config diff: the keys in which two configurations differ.
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
#include "witan/cli/config/differences.h"
#include "witan/cli/config/subcommands.h"
#include "witan/cli/presets.h"
#include "witan/cli/runs/table.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

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

// A path if it looks like one, else a run, else a preset; "run:", "preset:" and "file:" before it say which.
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

}  // namespace

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
  add_option(*command, "--runs-folder", args->runs_folder, "Folder of all runs").type_name("FOLDER").show_default();
  add_flag(*command, "--json", args->json, "Print JSON: of each key both values");
}

}  // namespace witan::cli
