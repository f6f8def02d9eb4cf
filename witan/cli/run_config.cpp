#include "witan/cli/run_config.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "witan/cli/megatron.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/train/saved_config.h"

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

// The keys that the call says, those that its mesh stands for among them.
std::set<std::string> apply(RunConfig& config, const ConfigArgs& args) {
  std::set<std::string> given = args.apply();
  given.merge(expand_mesh(config.parallel, given));
  return given;
}

}  // namespace

void add_megatron_flag(CLI::App& command) {
  command.add_flag("--megatron,--no-megatron")
      ->description("Megatron-LM's defaults [where its flags or an @FILE are given]")
      ->group("configuration");
}

std::optional<RunConfig> read_run_config(const Context& context, RunConfig& config, const ConfigArgs& args) {
  const MegatronLine* line = context.megatron.get();
  const std::set<std::string> given = apply(config, args);
  if (line && line->defaults && !given.contains("run")) config.train.run = line->name;
  const std::string folder = config.train.runs_folder, run = config.train.run;
  std::optional<RunConfig> before = saved_config(fs::path(folder) / run);
  if (before) {
    config = *before;
    config.train.runs_folder = folder;
    config.train.run = run;
    apply(config, args);
    if (line)
      say(context.err, fmt::format("the run {} goes on: its configuration holds where the command line says nothing",
                                   (fs::path(folder) / run).string()));
  } else if (line && line->defaults) {
    require_megatron_sizes(given, *line);
    say_defaults(context.err, *line, set_megatron_defaults(config, given));
  }
  if (line) say_harmless(context.err, *line);
  return before;
}

}  // namespace witan::cli
