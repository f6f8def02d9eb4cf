#include "witan/optim/param_groups.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/optim/lr_schedule.h"
#include "witan/optim/optimizer.h"

namespace witan {
namespace {

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (int kind = 0; kind < kParameterKinds; ++kind) names.emplace_back(name_of(static_cast<ParameterKind>(kind)));
  return names;
}

// "a, b" as {"a", "b"}.
std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string word = list.substr(begin, end - begin);
    std::erase(word, ' ');
    if (!word.empty()) words.push_back(std::move(word));
    begin = end + 1;
  }
  return words;
}

std::vector<ParameterKind> kinds_of(const std::string& list, const std::string& where) {
  const std::vector<std::string> names = kind_names();
  std::vector<ParameterKind> kinds;
  for (const std::string& word : words_of(list)) {
    const auto found = std::ranges::find(names, word);
    require<ConfigError>(found != names.end(), where, ": kind = ", clipped(word), ": there is no such kind",
                         suggestion(word, names), "; there are ", fmt::format("{}", fmt::join(names, ", ")));
    kinds.push_back(static_cast<ParameterKind>(found - names.begin()));
  }
  return kinds;
}

std::string label_of(const ParamGroupConfig& config) {
  std::string label;
  if (!config.kind.empty()) label = "kind = " + config.kind;
  if (!config.match.empty()) label += cat(label.empty() ? "" : ", ", "match = ", config.match);
  return label;
}

ShardBy shard_by_of(const std::string& optimizer, const std::string& asked) {
  const ShardBy needed = optimizer_traits(optimizer).needs;
  require<ConfigError>(asked != "elements" || needed == ShardBy::elements, "shard_by = elements: ", optimizer,
                       " updates whole matrices; leave shard_by out");
  return asked == "matrices" ? ShardBy::matrices : needed;
}

// The kinds of inner matrices; vectors are of other kinds.
bool is_inner(ParameterKind kind) {
  return kind == ParameterKind::matrices || kind == ParameterKind::experts;
}

// The members of `kinds` (none: any) that are inner, or those that are not.
std::vector<ParameterKind> kinds_that(const std::vector<ParameterKind>& kinds, bool inner) {
  std::vector<ParameterKind> chosen;
  for (int i = 0; i < kParameterKinds; ++i) {
    const auto kind = static_cast<ParameterKind>(i);
    if (is_inner(kind) == inner && (kinds.empty() || std::ranges::find(kinds, kind) != kinds.end()))
      chosen.push_back(kind);
  }
  return chosen;
}

ParamGroup read_group(const OptimizerConfig& config, const TableKeys& keys, int table) {
  const std::string where = cat("[[optimizer.groups]] ", table);
  ParamGroupConfig read;
  read.settings = config;
  const Fields fields = read.fields();
  for (const auto& [key, text] : keys) set_field(fields, key, text, where);
  require<ConfigError>(!words_of(read.match).empty() || !words_of(read.kind).empty(), where,
                       ": selects no parameters: set match, kind, or both");
  read.settings.lr *= read.lr_mult;
  read.settings.min_lr *= read.lr_mult;
  ParamGroup group{label_of(read), words_of(read.match), kinds_of(read.kind, where), read.settings};
  group.table = table;
  try {
    read.settings.validate();
    group.shard_by = shard_by_of(read.settings.optimizer, read.shard_by);
  } catch (const ConfigError& error) {
    throw ConfigError(cat(where, " (", group.label, "): ", error.what()));
  }
  return group;
}

// The group of the parameters that a group with an inherited optimizer of inner matrices leaves to AdamW.
ParamGroup left_to_adam(ParamGroup group) {
  group.kinds = kinds_that(group.kinds, false);
  std::vector<std::string_view> names;
  for (const ParameterKind kind : group.kinds) names.push_back(name_of(kind));
  group.label = fmt::format("kind = {}", fmt::join(names, ","));
  if (!group.match.empty()) group.label += fmt::format(", match = {}", fmt::join(group.match, ","));
  group.settings.optimizer = "adam";
  group.shard_by = ShardBy::elements;
  return group;
}

}  // namespace

std::string_view name_of(ShardBy shard_by) {
  return shard_by == ShardBy::elements ? "elements" : "matrices";
}

Fields ParamGroupConfig::fields() {
  Fields fields = {Field{"match", &match, "Globs on parameters' names"}, Field{"kind", &kind, "Kinds of parameters"}};
  for (Field& setting : settings.fields()) fields.push_back(std::move(setting));
  insert_fields_after(fields, "min_lr", {Field{"lr_mult", &lr_mult, "Factor of lr and min_lr"}.at_least(0)});
  fields.push_back(Field{"shard_by", &shard_by, "Unit of sharding over ranks: elements or whole matrices"}.one_of(
      {"elements", "matrices"}));
  return fields;
}

Fields ParamGroupConfig::columns() {
  static ParamGroupConfig any;  // is pointed to, and never changed
  return any.fields();
}

bool ParamGroup::takes(const ParameterSpec& spec) const {
  const auto fits = [&](const std::string& glob) { return fnmatch(glob.c_str(), spec.name.c_str(), 0) == 0; };
  return (kinds.empty() || std::ranges::find(kinds, spec.kind) != kinds.end()) &&
         (match.empty() || std::ranges::any_of(match, fits));
}

ParamGroups::ParamGroups(const OptimizerConfig& given) : config_(given) {
  OptimizerConfig config = given;
  config.weight_decay = largest_weight_decay(given);  // which groups inherit; a schedule takes a share of it
  groups_.push_back({"all others", {}, {}, config, optimizer_traits(config.optimizer).needs});
  const bool inner = optimizer_traits(config.optimizer).of_inner_matrices;
  int table = 0;
  for (const TableKeys& keys : config.groups) {
    ParamGroup group = read_group(config, keys, ++table);
    const bool inherits = std::ranges::none_of(keys, [](const auto& key) { return key.first == "optimizer"; });
    if (inner && inherits) {
      if (ParamGroup left = left_to_adam(group); !left.kinds.empty()) {
        left.shard_by = std::ranges::any_of(keys, [](const auto& key) { return key.first == "shard_by"; })
                            ? group.shard_by
                            : ShardBy::elements;
        groups_.push_back(std::move(left));
      }
      group.kinds = kinds_that(group.kinds, true);
      if (group.kinds.empty()) continue;
    }
    groups_.push_back(std::move(group));
  }
  if (inner) groups_.push_back(left_to_adam(groups_.front()));
}

size_t ParamGroups::index_of(const ParameterSpec& spec) const {
  for (size_t i = 1; i < groups_.size(); ++i)
    if (groups_[i].takes(spec)) return i;
  return 0;
}

std::vector<double> ParamGroups::learning_rates(int64_t length, int64_t position) const {
  std::vector<double> rates;
  for (const ParamGroup& group : groups_) {
    OptimizerConfig schedule = config_;
    schedule.lr = group.settings.lr;
    schedule.min_lr = group.settings.min_lr;
    rates.push_back(learning_rate(schedule, length, position));
  }
  return rates;
}

double ParamGroups::weight_decay_share(int64_t length, int64_t position) const {
  return witan::weight_decay_share(config_, length, position);
}

}  // namespace witan
