#include "witan/cli/compat/megatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/cli/args/config_args.h"
#include "witan/cli/compat/megatron_flags.h"
#include "witan/cli/other_names.h"

namespace witan::cli {
namespace {

constexpr const char* kOn = "--megatron";
constexpr const char* kOff = "--no-megatron";

// Whether the word is a flag; negative numbers are values.
bool is_flag(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return false;
  return !std::isdigit(static_cast<unsigned char>(word[1])) && word[1] != '.';
}

const Field* find_key(const Fields& fields, const std::string& flag) {
  for (const Field& field : fields)
    if (flag_name(field.name) == flag) return &field;
  return nullptr;
}

// Whether the word is --no-KEY for a true|false key.
const Field* find_negated(const Fields& fields, const std::string& flag) {
  if (!flag.starts_with("--no-")) return nullptr;
  const Field* field = find_key(fields, "--" + flag.substr(5));
  return field && std::holds_alternative<bool*>(field->value) ? field : nullptr;
}

// Splits "--min_lr=3" into "--min-lr" and "3".
std::pair<std::string, std::optional<std::string>> cut(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return {with_dashes(word), std::nullopt};
  return {with_dashes(word.substr(0, equals)), word.substr(equals + 1)};
}

// The words by which a line is recognised as Megatron-LM's, each once; none for ordinary arguments of Witan.
std::vector<std::string> signs_of_megatron(const std::vector<Argument>& words, const std::vector<std::string>& lists,
                                           const Fields& fields) {
  std::vector<std::string> signs;
  for (const std::string& list : lists) signs.push_back("@" + list);
  for (const Argument& word : words) {
    const std::string flag = cut(word.text).first;
    const bool theirs =
        is_flag(flag) && find_megatron_flag(flag) && !find_key(fields, flag) && !find_negated(fields, flag);
    if ((theirs || flag == kOn) && std::ranges::find(signs, flag) == signs.end()) signs.push_back(flag);
  }
  return signs;
}

// Witan's spelling of a flag that only Megatron-LM has: "did you mean --dtype bfloat16?"; empty: none.
std::string witan_way(const std::string& flag, const Fields& fields) {
  const MegatronFlag* const theirs = find_megatron_flag(flag);
  if (!theirs) return "";
  if (const std::string way = way_instead(flag); !way.empty()) return way + ".";
  if (find_key(fields, theirs->name)) return cat("did you mean ", theirs->name, "?");
  if (theirs->kind != FlagKind::honoured || theirs->key.empty()) return "";
  return cat("did you mean ", flag_name(theirs->key), theirs->value.empty() ? "" : " ", theirs->value, "?");
}

// Suggests Witan's flags if the only such flag sets several keys or computes their values: "did you mean
// --lr-warmup-iters 6?"; empty if it has set nothing.
std::string witan_way(const GivenFlag& flag, const MegatronSettings& settings) {
  std::string instead;
  for (const auto& setting : settings.all())
    if (setting.by == flag.name) instead += cat(" ", flag_name(setting.key), " ", shell_word(setting.text));
  return instead.empty() ? "" : cat("did you mean", instead, "?");
}

// Reads the flags of a line with their values.
class LineReader {
 public:
  LineReader(const std::vector<Argument>& words, const Fields& fields) : words_(words), fields_(fields) {}

  struct Given {
    const MegatronFlag* flag;  // null: Witan's own flag of a key
    const Field* field;
    bool negated;  // --no-KEY
    GivenFlag as;
  };

  std::vector<Given> given;
  std::vector<std::string> rest;
  bool defaults = true;

  void read() {
    bool ours = false;  // whether the last flag is the command's own, which may take a value
    while (at_ < words_.size()) {
      const Argument& word = words_[at_++];
      const auto [name, value] = cut(word.text);
      if (name == kOn || name == kOff) {
        defaults = name == kOn;
        ours = false;
      } else if (is_flag(word.text) && known(name)) {
        take(word, name, value);
        ours = false;
      } else {
        require<UsageError>(is_flag(word.text) || ours, word.origin, ": unexpected argument ", clipped(word.text),
                            after_.empty()
                                ? std::string(": give only the flags, without the command that starts the script")
                                : cat(" after ", after_));
        rest.push_back(word.text);
        ours = true;
      }
    }
  }

 private:
  bool known(const std::string& name) const {
    return find_megatron_flag(name) || find_key(fields_, name) || find_negated(fields_, name);
  }

  void take(const Argument& word, const std::string& name, const std::optional<std::string>& value) {
    const MegatronFlag* flag = find_megatron_flag(name);
    const Field* negated = flag ? nullptr : find_negated(fields_, name);
    const Field* field = flag ? nullptr : negated ? negated : find_key(fields_, name);
    Given one{flag, field, negated != nullptr, {flag ? flag->name : name, {}, word.origin}};
    const bool truth = field ? std::holds_alternative<bool*>(field->value) : flag->takes == Takes::nothing;
    const bool several = flag ? flag->takes == Takes::some : is_list(*field);
    if (value) one.as.values.push_back(*value);
    // A true|false key may be followed by its value, as elsewhere in Witan.
    while (at_ < words_.size() && !is_flag(words_[at_].text) && !value) {
      const std::string& next = words_[at_].text;
      if (!several && !one.as.values.empty()) break;
      if (truth && (negated || (next != "true" && next != "false"))) break;
      one.as.values.push_back(next);
      ++at_;
    }
    require<UsageError>(truth || !one.as.values.empty(), word.origin, ": ", name, " needs a value");
    after_ = truth ? cat(name, ", which takes no value") : name;
    given.push_back(std::move(one));
  }

  const std::vector<Argument>& words_;
  const Fields& fields_;
  size_t at_ = 0;
  std::string after_;  // the flag that was read last
};

bool is_accepted(const MegatronFlag& flag, const std::string& value) {
  return std::any_of(flag.accepted.begin(), flag.accepted.end(), [&](const std::string& accepted) {
    if (value == accepted) return true;
    char *end = nullptr, *accepted_end = nullptr;  // 1.0 is 1
    const double number = std::strtod(value.c_str(), &end), wanted = std::strtod(accepted.c_str(), &accepted_end);
    return !value.empty() && *end == '\0' && *accepted_end == '\0' && number == wanted;
  });
}

void accept(const LineReader::Given& one, MegatronLine& line) {
  const MegatronFlag& flag = *one.flag;
  if (!flag.accepted.empty())
    for (const std::string& value : one.as.values)
      if (!is_accepted(flag, value))
        one.as.refuse(fmt::format("{}: only {} is accepted", flag.why, fmt::join(flag.accepted, " or ")));
  if (flag.takes == Takes::nothing && one.as.values == std::vector<std::string>{"false"}) return;
  std::string text = flag.name;
  if (!flag.accepted.empty()) text += fmt::format(" {}", fmt::join(one.as.values, " "));
  line.harmless.push_back({text, flag.accepted.empty() ? flag.why : ""});
}

void apply_flag(const LineReader::Given& one, MegatronSettings& settings, MegatronLine& line) {
  const GivenFlag& as = one.as;
  const bool off = !as.values.empty() && as.value() == "false";
  if (!one.flag) {
    settings.set(one.field->name, one.negated ? "false" : as.values.empty() ? "true" : list_of(as.values), as);
  } else if (one.flag->kind == FlagKind::harmless) {
    accept(one, line);
  } else if (one.flag->kind == FlagKind::refused) {
    if (!off || one.flag->takes != Takes::nothing) as.refuse(one.flag->why);
  } else if (one.flag->rule) {
    if (!off || one.flag->takes != Takes::nothing) one.flag->rule(as, settings);
  } else if (!one.flag->value.empty()) {
    if (off) as.refuse(cat("takes no value; set ", flag_name(one.flag->key), " instead"));
    settings.set(one.flag->key, one.flag->value, as);
  } else {
    settings.set(one.flag->key, as.values.empty() ? "true" : as.value(), as);
  }
}

// Applies the flags. If `line.instead` has Witan's spelling, a refusal begins with it.
void apply_as_mistake(const LineReader::Given& one, MegatronSettings& settings, MegatronLine& line) {
  try {
    apply_flag(one, settings, line);
  } catch (const ConfigError& refused) {
    if (line.instead.empty()) throw;
    throw ConfigError(cat(line.instead, " ", refused.what()));
  }
  if (const std::string way = witan_way(one.as, settings); one.flag->rule && !way.empty()) line.instead = way;
}

std::string name_of_run(const std::vector<std::string>& lists) {
  const std::string stem = lists.empty() ? "" : fs::path(lists.front()).stem().string();
  return stem.empty() || stem == "." || stem == ".." ? "megatron" : stem;
}

}  // namespace

std::shared_ptr<const MegatronLine> read_megatron_line(const std::vector<std::string>& words) {
  std::vector<std::string> lists;
  const std::vector<Argument> expanded = expand_response_files(words, lists);
  RunConfig scratch;
  const Fields fields = scratch.fields();
  MegatronLine line;
  const std::vector<std::string> signs = signs_of_megatron(expanded, lists, fields);
  if (signs.empty()) return nullptr;
  line.why = signs.front();
  if (signs.size() == 1) line.instead = witan_way(signs.front(), fields);
  line.name = name_of_run(lists);

  LineReader reader(expanded, fields);
  reader.read();
  line.defaults = reader.defaults;
  line.rest = std::move(reader.rest);
  // The last value of a repeated flag counts: `@dense.args --num-layers 2` has two layers.
  std::map<std::string, size_t> last;
  std::map<std::string, GivenFlag> flags;
  for (size_t i = 0; i < reader.given.size(); ++i) {
    last[reader.given[i].as.name] = i;
    flags.insert_or_assign(reader.given[i].as.name, reader.given[i].as);
  }
  MegatronSettings settings(std::move(flags));
  const MegatronFlag* const only_sign = signs.size() == 1 ? find_megatron_flag(signs.front()) : nullptr;
  for (size_t i = 0; i < reader.given.size(); ++i)
    if (const auto& one = reader.given[i]; last[one.as.name] == i)
      (one.flag && one.flag == only_sign ? apply_as_mistake : apply_flag)(one, settings, line);
  for (const auto& ignored : settings.ignored()) line.harmless.push_back({ignored.flag, ignored.why});
  line.settings = settings.all();
  line.profiled = settings.profiled();
  for (const auto& setting : line.settings) set_field(fields, setting.key, setting.text, setting.origin);
  return std::make_shared<const MegatronLine>(std::move(line));
}

std::vector<std::string> witan_arguments(const MegatronLine& line) {
  std::vector<std::string> words = line.rest;
  for (const auto& setting : line.settings) {
    if (setting.text.empty()) {
      words.push_back(flag_name(setting.key));
      words.push_back("");
    } else {
      words.push_back(flag_name(setting.key) + "=" + setting.text);
    }
  }
  return words;
}

const Defaults& megatron_defaults() {
  static const Defaults defaults = {
      {"normalization", "LayerNorm"},
      {"norm_epsilon", "1e-5"},
      {"position_embedding_type", "learned_absolute"},
      {"rotary_base", "10000"},
      {"rotary_percent", "1"},
      {"rotary_interleaved", "false"},
      {"no_rope_freq", "none"},
      {"window_size", "none"},
      {"window_attn_skip_freq", "none"},
      {"add_bias_linear", "true"},
      {"swiglu", "false"},
      {"untie_embeddings_and_output_weights", "false"},
      {"make_vocab_size_divisible_by", "128"},
      {"hidden_dropout", "0.1"},
      {"attention_dropout", "0.1"},
      {"init_method_std", "0.02"},
      {"dtype", "float32"},
      {"num_experts", "0"},
      {"expert_model_parallel_size", "1"},
      {"moe_layer_freq", "1"},
      {"moe_ffn_hidden_size", "0"},
      {"moe_router_topk", "2"},
      {"moe_router_pre_softmax", "false"},
      {"moe_router_load_balancing_type", "aux_loss"},
      {"moe_aux_loss_coeff", "0"},
      {"moe_global_load", "so_far"},
      {"moe_z_loss_coeff", "0"},
      {"moe_expert_capacity_factor", "0"},
      {"moe_token_drop_policy", "probs"},
      {"moe_pad_expert_input_to_capacity", "false"},
      {"optimizer", "adam"},
      {"min_lr", "0"},
      {"lr_decay_style", "linear"},
      {"lr_warmup_iters", "0"},
      {"lr_schedule_counter", "updates"},
      {"lr_decay_iters", "0"},
      {"weight_decay", "0.01"},
      {"adam_beta1", "0.9"},
      {"adam_beta2", "0.999"},
      {"adam_eps", "1e-8"},
      {"sgd_momentum", "0.9"},
      {"clip_grad", "1"},
      {"seed", "1234"},
      {"log_interval", "100"},
      {"eval_interval", "1000"},
      {"eval_iters", "100"},
  };
  return defaults;
}

namespace {

// Defaults that follow from other values: validate_args() of megatron/training/arguments.py, and mlp.py.
Defaults derived_defaults(const RunConfig& config) {
  const ModelConfig& model = config.model;
  const int64_t hidden = model.hidden_size;
  const int64_t ranks = std::max({config.parallel.ranks, config.parallel.expert_model_parallel_size, int64_t{1}});
  Defaults defaults = {
      // SwiGLU has a third matrix, so its size is chosen for as many weights as without it, rounded to a multiple
      // of 64.
      // --quick-geglu keeps the size.
      {"ffn_hidden_size",
       std::to_string(model.mlp.swiglu && model.mlp.glu_activation_scale == 1 ? hidden * 8 / 192 * 64 : hidden * 4)},
      {"num_query_groups", std::to_string(model.attention.num_attention_heads)},
      {"norm_bias", model.norm.normalization == "LayerNorm" ? "true" : "false"},
      // The kernel that adds a bias and applies GELU is its tanh approximation; without biases GELU is exact.
      {"gelu_tanh", model.add_bias_linear && !model.mlp.squared_relu && !model.mlp.silu ? "true" : "false"},
      {"moe_expert_add_bias", model.add_bias_linear && model.moe.num_experts > 0 ? "true" : "false"},
      {"global_batch_size", std::to_string(config.train.micro_batch_size * ranks)}};
  if (!config.data.data_path.empty()) defaults.push_back({"held_out_fraction", "0.031"});  // --split 969,30,1
  if (config.data.reads_shards() && !config.data.sft) defaults.push_back({"data_samples", "megatron"});
  return defaults;
}

}  // namespace

std::vector<std::string> set_megatron_defaults(RunConfig& config, const std::set<std::string>& given) {
  RunConfig ours;
  const Fields fields = config.fields(), built_in = ours.fields();
  std::vector<std::string> changed;
  const auto set = [&](const Defaults& defaults) {
    for (const auto& [key, text] : defaults) {
      if (given.contains(key)) continue;
      set_field(fields, key, text, "Megatron-LM's default");
      for (size_t i = 0; i < fields.size(); ++i)
        if (fields[i].name == key && fields[i].text() != built_in[i].text())
          changed.push_back(cat(key, " = ", fields[i].text()));
    }
  };
  set(megatron_defaults());
  set(derived_defaults(config));
  return changed;
}

void require_megatron_sizes(const std::set<std::string>& given, const MegatronLine& line) {
  std::vector<std::string> missing;
  for (const char* key :
       {"num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size", "train_iters", "lr"})
    if (!given.contains(key)) missing.push_back(flag_name(key));
  if (given.contains("train_samples")) std::erase(missing, "--train-iters");
  require<ConfigError>(
      missing.empty(), line.instead, line.instead.empty() ? "" : " ", line.why,
      " makes this a Megatron-LM command line, which must also set ", fmt::format("{}", fmt::join(missing, ", ")),
      ". `witan help megatron` lists its flags and their effect in Witan; --no-megatron keeps Witan's defaults");
}

std::string megatron_reference() {
  std::string out =
      "## Defaults\n"
      "Keys that a Megatron-LM command line does not set get Megatron-LM's defaults:\n\n"
      "| key | default |\n|---|---|\n";
  for (const auto& [key, text] : megatron_defaults()) out += fmt::format("| `{}` | {} |\n", key, text);
  out +=
      "| `ffn_hidden_size` | 4 `hidden_size`; with `swiglu` 8/3 of it, down to a multiple of 64 |\n"
      "| `num_query_groups` | `num_attention_heads`; 1 with `--group-query-attention` |\n"
      "| `norm_bias` | true for LayerNorm, false for RMSNorm |\n"
      "| `gelu_tanh` | `add_bias_linear`: the fused bias kernel uses the tanh approximation |\n"
      "| `moe_expert_add_bias` | `add_bias_linear`, where there are experts |\n"
      "| `global_batch_size` | one micro-batch for each rank |\n"
      "| `data_samples` | megatron with token shards (`--data-path`, `--train-data-path`) and without `--sft`; "
      "otherwise witan |\n"
      "| `held_out_fraction` | 0.031 with `--data-path` (`--split 969,30,1`); otherwise Witan's |\n\n"
      "Other keys keep Witan's defaults: they change neither the model nor its training.\n\n"
      "## Flags\n";
  return out + megatron_table();
}

}  // namespace witan::cli
