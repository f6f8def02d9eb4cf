#include "witan/cli/run_config.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "witan/base/error.h"
#include "witan/cli/compat/megatron.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/train/run/resolve.h"
#include "witan/train/run/saved_config.h"

namespace witan::cli {
namespace {

// Unlike fmt::print it does not throw: talk that cannot be heard ends nothing.
void say(std::FILE* err, const std::string& line) {
  std::fputs((line + "\n").c_str(), err);
}

// Each flag once; those that share a reason stand together, those that need none first.
void say_harmless(std::FILE* err, const MegatronLine& line) {
  std::vector<std::pair<std::string, std::string>> reasons = {{"", ""}};
  for (const auto& [flag, why] : line.harmless) {
    auto known = std::find_if(reasons.begin(), reasons.end(), [&](const auto& reason) { return reason.first == why; });
    if (known == reasons.end()) known = reasons.insert(reasons.end(), {why, ""});
    known->second += (known->second.empty() ? "" : ", ") + flag;
  }
  std::string flags;
  for (const auto& [why, names] : reasons)
    if (!names.empty())
      flags += fmt::format("{}{}{}", flags.empty() ? "" : ", ", names, why.empty() ? "" : " (" + why + ")");
  if (!flags.empty()) say(err, "accepted without effect: " + flags);
}

void say_defaults(std::FILE* err, const MegatronLine& line, const std::vector<std::string>& changed) {
  say(err, fmt::format("Megatron-LM's defaults apply ({}; --no-megatron: Witan's): {}", line.why,
                       changed.empty() ? "they are Witan's here" : fmt::format("{}", fmt::join(changed, ", "))));
}

// Experts need sequence parallelism beside tensor parallelism (RunConfig::validate). It is switched on where the call
// asks for tensor-parallel ranks and does not set sequence_parallel in the same place or in one that beats it.
void follow_tensor_ranks(RunConfig& config, const ConfigSources& sources) {
  const auto& said = sources.flags.contains("tensor_model_parallel_size") ? sources.flags : sources.given;
  if (!said.contains("tensor_model_parallel_size") || said.contains("sequence_parallel")) return;
  if (config.parallel.tensor_model_parallel_size > 1 && config.model.moe.num_experts > 0)
    config.parallel.sequence_parallel = true;
}

// Sets what the file and the flags say, each with the keys that its mesh stands for.
void apply(ConfigSources& sources, RunConfig& config, const ConfigArgs& args) {
  sources.given = args.apply_file();
  sources.given.merge(expand_mesh(config.parallel, sources.given, args.file()));
  sources.flags = args.apply_flags();
  sources.flags.merge(expand_mesh(config.parallel, sources.flags));
  sources.given.insert(sources.flags.begin(), sources.flags.end());
}

// Sets what the run on disk says, and the call over it.
void resume(ConfigSources& sources, RunConfig& config, const ConfigArgs& args) {
  const std::string folder = config.train.runs_folder, run = config.train.run;
  config = *sources.before;
  config.train.runs_folder = folder;
  config.train.run = run;
  apply(sources, config, args);
  sources.changes = changed_identity(*sources.before, config);
}

// Whether the message names the key with this value: "KEY = VALUE", and no longer word or number.
bool names(const std::string& message, const std::string& key, const std::string& value) {
  const auto is_word = [&](size_t at) {
    return at < message.size() && (std::isalnum(static_cast<unsigned char>(message[at])) != 0 || message[at] == '_');
  };
  const std::string words = key + " = " + value;
  for (size_t at = message.find(words); at != std::string::npos; at = message.find(words, at + 1))
    if (!(at > 0 && is_word(at - 1)) && !is_word(at + words.size())) return true;
  return false;
}

// Of the values that the message names, those that the run on disk has said and this call may say otherwise; or
// nothing.
std::string values_of_run(const ConfigSources& sources, const std::string& message) {
  if (!sources.before) return "";
  RunConfig before = *sources.before, defaults;
  std::vector<std::string> values, flags;
  const Fields was = before.fields(), usual = defaults.fields();
  for (size_t i = 0; i < was.size(); ++i) {
    const std::string& key = was[i].name;
    if (sources.given.contains(key) || is_identity(was[i]) || was[i].text() == usual[i].text()) continue;
    std::string value = was[i].text();  // texts carry TOML's quotes
    std::erase(value, '"');
    if (!names(message, key, value)) continue;
    values.push_back(key + " = " + value);
    const std::string_view axis = expert_axis_of(key);
    flags.push_back(axis.empty() ? flag_name(key) : fmt::format("{} (or {}=N in --mesh)", flag_name(key), axis));
  }
  if (values.empty()) return "";
  const bool one = values.size() == 1;
  return fmt::format("{} {} what the run {} has in its config.toml: give {} to say {}", fmt::join(values, " and "),
                     one ? "is" : "are", sources.run.string(), fmt::join(flags, " and "), one ? "another" : "others");
}

}  // namespace

void add_megatron_flag(CLI::App& command) {
  command.add_flag("--megatron,--no-megatron")
      ->description("Megatron-LM's defaults [where its flags or an @FILE are given]")
      ->group("configuration");
}

ConfigSources read_run_config(const Context& context, RunConfig& config, const ConfigArgs& args, OtherRun other) {
  const MegatronLine* line = context.megatron.get();
  ConfigSources sources;
  apply(sources, config, args);
  if (line && line->defaults && !sources.given.contains("run")) config.train.run = line->name;
  sources.run = fs::path(config.train.runs_folder) / config.train.run;
  sources.before = saved_config(sources.run);
  const RunConfig alone = config;
  if (sources.before) resume(sources, config, args);
  if (other == OtherRun::leave && !sources.changes.empty()) {
    config = alone;
    sources.before.reset();
    say(context.err,
        fmt::format("planned as a new run (--run NAME) of what this call says: `witan train` would refuse to resume {} "
                    "with {}",
                    sources.run.string(), fmt::join(sources.changes, ", ")));
  }
  if (sources.before) {
    if (line)
      say(context.err, fmt::format("the run {} goes on: its configuration holds where the command line says nothing",
                                   sources.run.string()));
  } else if (line && line->defaults) {
    require_megatron_sizes(sources.given, *line);
    say_defaults(context.err, *line, set_megatron_defaults(config, sources.given));
  }
  follow_tensor_ranks(config, sources);
  if (line) say_harmless(context.err, *line);
  return sources;
}

ExitCode telling_sources(const ConfigSources& sources, const std::function<ExitCode()>& body) {
  try {
    return body();
  } catch (const ConfigError& error) {
    const std::string remembered = values_of_run(sources, error.what());
    if (remembered.empty()) throw;
    throw ConfigError(cat(error.what(), ". ", remembered));
  }
}

}  // namespace witan::cli
