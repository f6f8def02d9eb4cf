// Rules for flags of Megatron-LM that do more than set a key.
#pragma once

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/train/config/config.h"

namespace witan::cli {

// One flag of the command line.
struct GivenFlag {
  std::string name;  // as Megatron-LM spells it
  std::vector<std::string> values;
  std::string origin;  // where it was given

  const std::string& value() const { return values.front(); }
  std::string list() const;                                // all values, with commas between them
  [[noreturn]] void refuse(const std::string& why) const;  // throws ConfigError: where, flag, values, why
};

// The number that `text` is as a whole; nothing for any other text.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The keys that a Megatron-LM command line has set so far. A later value replaces an earlier one, as in argparse.
class MegatronSettings {
 public:
  struct Setting {
    std::string key, text, origin;
    std::string by;  // the flag
  };

  // `flags`: all flags of the command line, each with its last values.
  explicit MegatronSettings(std::map<std::string, GivenFlag> flags) : flags_(std::move(flags)) {}

  struct Ignored {
    std::string flag, why;
  };

  void set(const std::string& key, const std::string& text, const GivenFlag& by);
  const std::vector<Setting>& all() const { return settings_; }

  // Accepts a flag that has no effect together with the others, as in Megatron-LM.
  void ignore(const GivenFlag& given, const std::string& why) { ignored_.push_back({given.name, why}); }
  const std::vector<Ignored>& ignored() const { return ignored_; }

  void profile(StepRange steps) { profiled_ = steps; }
  const std::optional<StepRange>& profiled() const { return profiled_; }

  bool has(const std::string& flag) const;
  // The last value of a flag, or null.
  const std::string* value_of(const std::string& flag) const;
  // The last value of a flag as a whole number from 1 on; if there is none, refuses `user`, the flag that needs it.
  int64_t count_of(const std::string& flag, const GivenFlag& user) const;

 private:
  std::map<std::string, GivenFlag> flags_;
  std::vector<Setting> settings_;
  std::vector<Ignored> ignored_;
  std::optional<StepRange> profiled_;
};

// The MegatronFlag::Rule of each flag, by its name.
namespace rules {
void load_balancing_type(const GivenFlag& given, MegatronSettings& settings);
void aux_loss_coeff(const GivenFlag& given, MegatronSettings& settings);
void layer_pattern(const GivenFlag& given, MegatronSettings& settings);  // of the key of the flag's name
void hybrid_layer_pattern(const GivenFlag& given, MegatronSettings& settings);
void spec(const GivenFlag& given, MegatronSettings& settings);
void group_query_attention(const GivenFlag& given, MegatronSettings& settings);
void num_query_groups(const GivenFlag& given, MegatronSettings& settings);
void no_position_embedding(const GivenFlag& given, MegatronSettings& settings);
void multi_latent_attention(const GivenFlag& given, MegatronSettings& settings);
void kv_channels(const GivenFlag& given, MegatronSettings& settings);
void v_head_dim(const GivenFlag& given, MegatronSettings& settings);
void hyper_connections(const GivenFlag& given, MegatronSettings& settings);
void interpolation_factor(const GivenFlag& given, MegatronSettings& settings);
void use_rope_scaling(const GivenFlag& given, MegatronSettings& settings);
void rope_scaling_factor(const GivenFlag& given, MegatronSettings& settings);
void rope_type(const GivenFlag& given, MegatronSettings& settings);
void quick_geglu(const GivenFlag& given, MegatronSettings& settings);
void token_dispatcher_type(const GivenFlag& given, MegatronSettings& settings);
void cp_comm_type(const GivenFlag& given, MegatronSettings& settings);
void check_for_spikes(const GivenFlag& given, MegatronSettings& settings);
void recompute_method(const GivenFlag& given, MegatronSettings& settings);
void recompute_modules(const GivenFlag& given, MegatronSettings& settings);
void accumulate_in_fp32(const GivenFlag& given, MegatronSettings& settings);
void main_grads_dtype(const GivenFlag& given, MegatronSettings& settings);
void exp_avg_dtype(const GivenFlag& given, MegatronSettings& settings);
void exp_avg_sq_dtype(const GivenFlag& given, MegatronSettings& settings);
void fp8_format(const GivenFlag& given, MegatronSettings& settings);
void fp8_recipe(const GivenFlag& given, MegatronSettings& settings);
void cuda_graph_impl(const GivenFlag& given, MegatronSettings& settings);
void tp_comm_overlap(const GivenFlag& given, MegatronSettings& settings);
void rampup_batch_size(const GivenFlag& given, MegatronSettings& settings);
void decrease_batch_size(const GivenFlag& given, MegatronSettings& settings);
void train_samples(const GivenFlag& given, MegatronSettings& settings);
void lr_decay_samples(const GivenFlag& given, MegatronSettings& settings);
void lr_wsd_decay_samples(const GivenFlag& given, MegatronSettings& settings);
void lr_warmup_samples(const GivenFlag& given, MegatronSettings& settings);
void lr_warmup_fraction(const GivenFlag& given, MegatronSettings& settings);
void weight_decay(const GivenFlag& given, MegatronSettings& settings);
void start_weight_decay(const GivenFlag& given, MegatronSettings& settings);
void end_weight_decay(const GivenFlag& given, MegatronSettings& settings);
void weight_decay_incr_style(const GivenFlag& given, MegatronSettings& settings);
void decoupled_lr(const GivenFlag& given, MegatronSettings& settings);
void decoupled_min_lr(const GivenFlag& given, MegatronSettings& settings);
void data_path(const GivenFlag& given, MegatronSettings& settings);
void train_data_path(const GivenFlag& given, MegatronSettings& settings);
void valid_data_path(const GivenFlag& given, MegatronSettings& settings);
void test_data_path(const GivenFlag& given, MegatronSettings& settings);
void data_args_path(const GivenFlag& given, MegatronSettings& settings);
void per_split_data_args_path(const GivenFlag& given, MegatronSettings& settings);
void split(const GivenFlag& given, MegatronSettings& settings);
void tokenizer_type(const GivenFlag& given, MegatronSettings& settings);
void tokenizer_model(const GivenFlag& given, MegatronSettings& settings);
void vocab_file(const GivenFlag& given, MegatronSettings& settings);
void merge_file(const GivenFlag& given, MegatronSettings& settings);
void token_dropping(const GivenFlag& given, MegatronSettings& settings);
void megablocks(const GivenFlag& given, MegatronSettings& settings);
void profile(const GivenFlag& given, MegatronSettings& settings);
void save(const GivenFlag& given, MegatronSettings& settings);
void load(const GivenFlag& given, MegatronSettings& settings);
void pretrained_checkpoint(const GivenFlag& given, MegatronSettings& settings);
void finetune(const GivenFlag& given, MegatronSettings& settings);
void ckpt_step(const GivenFlag& given, MegatronSettings& settings);
void no_load_optim(const GivenFlag& given, MegatronSettings& settings);
}  // namespace rules

// Expands a pattern of layers (base/config/layer_pattern.h): "([1]*3+[0])*2" is "[1,1,1,0,1,1,1,0]". Empty if the text
// is not a pattern.
std::string expand_layer_pattern(const std::string& text);

}  // namespace witan::cli
