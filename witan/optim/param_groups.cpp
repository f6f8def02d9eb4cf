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
  return {
      Field{"match", &match, "Globs on parameters' names"},
      Field{"kind", &kind, "Kinds of parameters"},
      Field{"optimizer", &settings.optimizer, "Optimizer"}.one_of(optimizer_names()),
      Field{"lr", &settings.lr, "Peak learning rate"}.at_least(0),
      Field{"min_lr", &settings.min_lr, "Learning rate at the end of the decay"}.at_least(0),
      Field{"lr_mult", &lr_mult, "Factor of lr and min_lr"}.at_least(0),
      Field{"weight_decay", &settings.weight_decay, "Weight decay"}.at_least(0),
      Field{"decay_norms_and_biases", &settings.decay_norms_and_biases, "Apply weight decay to norms and biases too"},
      Field{"adam_beta1", &settings.adam_beta1, "Adam's decay rate of the first moment"}.between(0, 1),
      Field{"adam_beta2", &settings.adam_beta2, "Adam's decay rate of the second moment"}.between(0, 1),
      Field{"adam_eps", &settings.adam_eps, "Epsilon added to Adam's denominator"}.above(0),
      Field{"exp_avg_dtype", &settings.exp_avg_dtype, "Dtype of Adam's first moment"}.one_of({"float32", "bfloat16"}),
      Field{"exp_avg_sq_dtype", &settings.exp_avg_sq_dtype, "Dtype of Adam's second moment"}.one_of(
          {"float32", "bfloat16"}),
      Field{"sgd_momentum", &settings.sgd_momentum, "Momentum of SGD"}.between(0, 1),
      Field{"lion_beta1", &settings.lion_beta1, "Lion's share of the momentum in the sign"}.between(0, 1),
      Field{"lion_beta2", &settings.lion_beta2, "Lion's decay rate of the momentum"}.between(0, 1),
      Field{"ademamix_beta3", &settings.ademamix_beta3, "AdEMAMix's decay rate of the slow average"}.between(0, 1),
      Field{"ademamix_alpha", &settings.ademamix_alpha, "AdEMAMix's coefficient of the slow average"}.at_least(0),
      Field{"ademamix_warmup_iters", &settings.ademamix_warmup_iters, "Updates over which alpha and beta3 rise"}
          .at_least(0),
      Field{"muon_momentum", &settings.muon_momentum, "Momentum of Muon and NorMuon"}.between(0, 1),
      Field{"muon_nesterov", &settings.muon_nesterov, "Use Nesterov momentum in Muon"},
      Field{"muon_num_ns_steps", &settings.muon_num_ns_steps, "Newton-Schulz iterations of Muon"}.between(1, 100),
      Field{"muon_coefficient_type", &settings.muon_coefficient_type, "Coefficients of Muon's iterations"}.one_of(
          {"quintic", "polar_express", "cubic", "deepseek"}),
      Field{"muon_scale_mode", &settings.muon_scale_mode, "Scale of Muon's updates"}.one_of(
          {"moonlight", "shape_scaling", "unit_rms_norm", "none"}),
      Field{"muon_extra_scale_factor", &settings.muon_extra_scale_factor, "Factor of muon_scale_mode = moonlight"}
          .above(0),
      Field{"normuon_beta2", &settings.normuon_beta2, "NorMuon's decay rate of the second moment"}.between(0, 1),
      Field{"precondition_frequency", &settings.precondition_frequency,
            "Updates between two computations of Shampoo's or SOAP's preconditioners"}
          .at_least(1),
      Field{"start_preconditioning_step", &settings.start_preconditioning_step,
            "Update at which Shampoo first computes preconditioners (0: precondition_frequency)"}
          .at_least(0),
      Field{"max_preconditioner_dim", &settings.max_preconditioner_dim,
            "Maximum rows and columns of Shampoo's blocks; SOAP does not precondition longer dims"}
          .at_least(1),
      Field{"shampoo_beta", &settings.shampoo_beta, "Decay rate of Shampoo's and SOAP's factors (1: Shampoo sums them)"}
          .between(0, 1),
      Field{"shampoo_eps", &settings.shampoo_eps, "Epsilon added to Shampoo's factors before their roots"}.above(0),
      Field{"shampoo_exponent", &settings.shampoo_exponent,
            "Shampoo raises factors to minus this power (0: 1/4 for matrices, 1/2 for vectors)"}
          .at_least(0),
      Field{"shampoo_root", &settings.shampoo_root, "How Shampoo computes roots: eigen (CPU only) or newton"}.one_of(
          {"eigen", "newton"}),
      Field{"shampoo_grafting", &settings.shampoo_grafting, "Update whose norm Shampoo gives to the update of a block"}
          .one_of({"adam", "sgd", "none"}),
      Field{"shard_by", &shard_by, "Unit of sharding over ranks: elements or whole matrices"}.one_of(
          {"elements", "matrices"}),
  };
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
