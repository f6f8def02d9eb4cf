#include "witan/cli/compat/megatron_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "witan/cli/other_names.h"

namespace witan::cli {
namespace {

std::string key_of(std::string_view flag) {
  std::string key(flag.substr(2));
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

std::string meaning(const MegatronFlag& flag) {
  const std::string more = flag.why.empty() ? "" : ": " + flag.why;
  if (flag.key.empty() || !flag.value.empty())
    return flag.key.empty() ? flag.why : fmt::format("`{} = {}`{}", flag.key, flag.value, more);
  if (flag.takes == Takes::nothing) return fmt::format("`{} = true`{}", flag.key, more);
  return fmt::format("`{}`{}", flag.key, more);
}

std::string kind_text(const MegatronFlag& flag) {
  if (flag.kind == FlagKind::honoured) return "honoured";
  if (flag.kind == FlagKind::refused) return "refused";
  if (flag.accepted.empty()) return "harmless";
  return fmt::format("harmless: {}; else refused", fmt::join(flag.accepted, ", "));
}

}  // namespace

MegatronFlag same(std::string name) {
  std::string key = key_of(name);
  return {.name = std::move(name), .kind = FlagKind::honoured, .takes = Takes::one, .key = std::move(key)};
}

MegatronFlag same_truth(std::string name) {
  MegatronFlag flag = same(std::move(name));
  flag.takes = Takes::nothing;
  return flag;
}

MegatronFlag sets(std::string name, std::string key, std::string value) {
  return {.name = std::move(name), .kind = FlagKind::honoured, .key = std::move(key), .value = std::move(value)};
}

MegatronFlag renamed(std::string name, std::string key, std::string why) {
  return {.name = std::move(name),
          .kind = FlagKind::honoured,
          .takes = Takes::one,
          .key = std::move(key),
          .why = std::move(why)};
}

MegatronFlag ruled(std::string name, Takes takes, MegatronFlag::Rule rule, std::string why) {
  return {.name = std::move(name), .kind = FlagKind::honoured, .takes = takes, .why = std::move(why), .rule = rule};
}

MegatronFlag harmless(std::string name, std::string why, Takes takes) {
  return {.name = std::move(name), .kind = FlagKind::harmless, .takes = takes, .why = std::move(why)};
}

MegatronFlag only(std::string name, std::vector<std::string> accepted, std::string why) {
  return {.name = std::move(name),
          .kind = FlagKind::harmless,
          .takes = Takes::some,
          .accepted = std::move(accepted),
          .why = std::move(why)};
}

MegatronFlag refused(std::string name, std::string why, Takes takes) {
  return {.name = std::move(name), .kind = FlagKind::refused, .takes = takes, .why = std::move(why)};
}

const std::vector<MegatronSection>& megatron_sections() {
  static const std::vector<MegatronSection> sections = {
      megatron_model_flags(),       megatron_moe_flags(),           megatron_regularization_flags(),
      megatron_training_flags(),    megatron_learning_rate_flags(), megatron_precision_flags(),
      megatron_distributed_flags(), megatron_kernel_flags(),        megatron_data_flags(),
      megatron_checkpoint_flags(),  megatron_logging_flags(),       megatron_launcher_flags()};
  return sections;
}

const MegatronFlag* find_megatron_flag(std::string_view name) {
  const std::string spelt = with_dashes(std::string(name));
  for (const MegatronSection& section : megatron_sections())
    for (const MegatronFlag& flag : section.flags)
      if (flag.name == spelt) return &flag;
  return nullptr;
}

std::vector<std::string> megatron_flag_names() {
  std::vector<std::string> names;
  for (const MegatronSection& section : megatron_sections())
    for (const MegatronFlag& flag : section.flags) names.push_back(flag.name);
  return names;
}

std::string megatron_table() {
  std::string out;
  for (const MegatronSection& section : megatron_sections()) {
    out += fmt::format("{}### {}\n| flag | kind | effect in Witan |\n|---|---|---|\n", out.empty() ? "" : "\n",
                       section.title);
    for (const MegatronFlag& flag : section.flags)
      out += fmt::format("| `{}` | {} | {} |\n", flag.name, kind_text(flag), meaning(flag));
  }
  return out;
}

}  // namespace witan::cli
