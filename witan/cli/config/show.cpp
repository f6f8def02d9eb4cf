// witan config show: what `witan train` would be given, key by key, and who says it.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/config/field_json.h"
#include "witan/cli/config/subcommands.h"
#include "witan/cli/train/first_weights.h"
#include "witan/cli/train/planning.h"
#include "witan/train/config/resolve.h"

namespace witan::cli {
namespace {

struct ShowArgs {
  RunConfig flags;  // which `args` set
  std::optional<ConfigArgs> args;
  bool changed = false, resolved = false, json = false;
};

struct ShownKey {
  std::string section, key, value, source;
  nlohmann::ordered_json json;  // the value as json_value() has it
  bool is_changed = false;      // from Witan's default
};

// As `witan train` would resolve it on this machine.
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

// Sources are comments, so that the whole is a file for --config.
std::string toml_of(const std::vector<ShownKey>& keys) {
  size_t widest = 0;
  constexpr size_t kMostAligned = 48;  // beyond which a comment stands where its value ends
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

}  // namespace

void add_config_show(CLI::App& config, Context& context) {
  const auto state = std::make_shared<ShowArgs>();
  CLI::App* command = add_command(
      config, context,
      {"show", "Show the configuration that these arguments come to, with the source of every value",
       cat("The same arguments as those of `witan train`, read in the same way: defaults, the run on disk, --preset, "
           "--config, flags. The output is TOML for --config; where a value comes from is the comment behind it. ",
           kListsHelp),
       "witan config show\n"
       "witan config show --preset gpt2-124m --changed\n"
       "witan config show --run mine --lr 1e-3 --changed\n"
       "witan config show --config recipes/default.toml --resolved --json"},
      [state, &context] {
        GivenConfig given = read_given_config(context, state->flags, *state->args, OtherRun::leave);
        keep_first_weights(given);
        return naming_sources(given, [&] { return show(context, *state, given); });
      });
  add_flag(*command, "--changed", state->changed, "Only keys whose values are not the defaults");
  add_flag(*command, "--resolved", state->resolved,
           "What becomes of values that depend on this machine, the launcher or the data, with the reasons");
  add_flag(*command, "--json", state->json, "Print JSON: value and source of each key");
  add_megatron_flag(*command);
  state->args.emplace(*command, state->flags.fields());
}

}  // namespace witan::cli
