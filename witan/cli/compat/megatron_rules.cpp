#include "witan/cli/compat/megatron_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "witan/base/config/layer_pattern.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/model/config.h"

namespace witan::cli {
namespace {

int64_t count(const GivenFlag& given) {
  const auto value = parse_number<int64_t>(given.value());
  if (!value || *value < 0) given.refuse("must be a whole number");
  return *value;
}

// Converts samples to iterations; `exact`: refuses a number that is not a multiple of the batch size.
std::string iterations(const GivenFlag& given, const MegatronSettings& settings, bool exact) {
  const int64_t samples = count(given), batch = settings.count_of("--global-batch-size", given);
  if (exact && samples % batch != 0)
    given.refuse(
        fmt::format("is not a multiple of --global-batch-size {}, and schedules count whole iterations: use {} or {}",
                    batch, samples / batch * batch, (samples / batch + 1) * batch));
  return std::to_string(samples / batch);
}

std::string moment_dtype(const GivenFlag& given) {
  if (given.value() != "fp32" && given.value() != "bf16") given.refuse("Adam's moments are fp32 or bf16");
  return given.value() == "bf16" ? "bfloat16" : "float32";
}

}  // namespace

void GivenFlag::refuse(const std::string& why) const {
  std::string all = name;
  for (const std::string& value : values) all += " " + clipped(value);
  throw ConfigError(cat(origin, ": ", clipped(all, 200), ": ", why));
}

std::string GivenFlag::list() const {
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ",") + value;
  return list;
}

void MegatronSettings::set(const std::string& key, const std::string& text, const GivenFlag& by) {
  std::erase_if(settings_, [&](const Setting& setting) { return setting.key == key; });
  settings_.push_back({key, text, cat(by.origin, ": ", by.name), by.name});
}

bool MegatronSettings::has(const std::string& flag) const {
  const auto given = flags_.find(flag);
  return given != flags_.end() && given->second.values != std::vector<std::string>{"false"};
}

const std::string* MegatronSettings::value_of(const std::string& flag) const {
  const auto given = flags_.find(flag);
  return given == flags_.end() || given->second.values.empty() ? nullptr : &given->second.values.front();
}

int64_t MegatronSettings::count_of(const std::string& flag, const GivenFlag& user) const {
  const std::string* text = value_of(flag);
  if (!text) user.refuse(cat("needs ", flag, " as well"));
  const auto value = parse_number<int64_t>(*text);
  if (!value || *value < 1) user.refuse(cat("needs ", flag, " to be a whole number from 1 on, not ", clipped(*text)));
  return *value;
}

std::string expand_layer_pattern(const std::string& text) {
  std::string list;
  for (const bool layer : read_layer_list(text)) list += cat(list.empty() ? "[" : ",", layer ? '1' : '0');
  return list.empty() ? "" : list + "]";
}

namespace rules {

void accumulate_in_fp32(const GivenFlag& given, MegatronSettings& settings) {
  for (const auto& [flag, narrow] : {std::pair{"--main-grads-dtype", "bf16"}, {"--gradient-dtype", "bfloat16"}})
    if (const std::string* value = settings.value_of(flag); value && *value == narrow)
      given.refuse(cat("contradicts ", flag, " ", narrow, "; leave one of them out"));
  if (settings.has("--grad-reduce-in-bf16")) given.refuse("contradicts --grad-reduce-in-bf16; leave one of them out");
  settings.set("gradient_dtype", "float32", given);
}

void main_grads_dtype(const GivenFlag& given, MegatronSettings& settings) {
  if (given.value() != "fp32" && given.value() != "bf16") given.refuse("gradients are fp32 or bf16");
  settings.set("gradient_dtype", given.value() == "bf16" ? "bfloat16" : "float32", given);
}

void exp_avg_dtype(const GivenFlag& given, MegatronSettings& settings) {
  settings.set("exp_avg_dtype", moment_dtype(given), given);
}

void exp_avg_sq_dtype(const GivenFlag& given, MegatronSettings& settings) {
  settings.set("exp_avg_sq_dtype", moment_dtype(given), given);
}

void fp8_format(const GivenFlag& given, MegatronSettings& settings) {
  settings.set("fp8_format", given.value(), given);
  if (!settings.has("--fp8-recipe")) settings.set("fp8_recipe", "delayed", given);
}

void fp8_recipe(const GivenFlag& given, MegatronSettings& settings) {
  if (given.value() == "mxfp8") given.refuse(cat(kNoMxfp8, "; give --fp8-recipe blockwise"));
  settings.set("fp8_recipe", given.value(), given);
}

void cuda_graph_impl(const GivenFlag& given, MegatronSettings& settings) {
  settings.set("cuda_graph", given.value() == "none" ? "false" : "true", given);
}

namespace {

// With sinkhorn, Megatron-LM's weights are a softmax over all experts, or a sigmoid for top-1, whatever else is given.
void sinkhorn(const GivenFlag& given, MegatronSettings& settings) {
  const std::string* const topk = settings.value_of("--moe-router-topk");
  const bool one = topk != nullptr && *topk == "1";
  settings.set("moe_router_selection", "sinkhorn", given);
  settings.set("moe_router_load_balancing_type", "none", given);
  settings.set("moe_router_score_function", one ? "sigmoid" : "softmax", given);
  settings.set("moe_router_pre_softmax", one ? "false" : "true", given);
}

}  // namespace

void load_balancing_type(const GivenFlag& given, MegatronSettings& settings) {
  const std::string ways =
      "the types are aux_loss, seq_aux_loss, global_aux_loss, several of them, quantile_balancing, sinkhorn and none";
  if (given.values.size() == 1 && given.value() == "sinkhorn") return sinkhorn(given, settings);
  if (given.values.size() == 1 && given.value() == "None")  // as Megatron-LM's own pages spell it
    return settings.set("moe_router_load_balancing_type", "none", given);
  for (const std::string& type : given.values) {
    const bool alone = type == "quantile_balancing" || type == "none";
    const bool loss = type == "aux_loss" || type == "seq_aux_loss" || type == "global_aux_loss";
    const bool twice = std::ranges::count(given.values, type) > 1;
    if ((!alone && !loss) || (alone && given.values.size() > 1) || twice) given.refuse(ways);
  }
  settings.set("moe_router_load_balancing_type", given.list(), given);
}

void aux_loss_coeff(const GivenFlag& given, MegatronSettings& settings) {
  settings.set("moe_aux_loss_coeff", given.list(), given);
}

void layer_pattern(const GivenFlag& given, MegatronSettings& settings) {
  const bool period = parse_number<int64_t>(given.value()).has_value();
  const std::string pattern = period ? given.value() : expand_layer_pattern(given.value());
  if (pattern.empty()) given.refuse("must be a whole number, or a list of 0 and 1 as in ([1]*3+[0]*1)*3");
  std::string key = given.name.substr(2);
  std::ranges::replace(key, '-', '_');
  settings.set(key, pattern, given);
}

// The pattern of newer versions, which may also divide the layers into stages and describe modules of multi-token
// prediction.
void hybrid_layer_pattern(const GivenFlag& given, MegatronSettings& settings) {
  const std::string& pattern = given.value();
  if (pattern.find('|') != std::string::npos)
    given.refuse(
        "stages of a pipeline are not marked in the pattern: leave | out, and give the stages layers by "
        "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers where they differ");
  if (pattern.find('/') != std::string::npos)
    given.refuse("models of such layers have no modules of multi-token prediction: leave / and what follows it out");
  if (settings.has("--hybrid-override-pattern"))
    given.refuse("is the newer name of --hybrid-override-pattern: leave one of them out");
  settings.set("hybrid_override_pattern", pattern, given);
  if (!settings.has("--num-layers")) settings.set("num_layers", std::to_string(pattern.size()), given);
}

void spec(const GivenFlag& given, MegatronSettings& settings) {
  const std::string& last = given.values.back();
  if (!given.values.front().starts_with("megatron.core.models.") ||
      (last != "mamba_stack_spec" && last != "hybrid_stack_spec"))
    given.refuse(
        "layers of other Python modules are not read: describe the model by the other flags, or by keys of a TOML file "
        "(--config)");
  if (!settings.has("--hybrid-override-pattern") && !settings.has("--hybrid-layer-pattern"))
    given.refuse("needs --hybrid-override-pattern, a letter for each layer");
  settings.ignore(given, "layers are those of the pattern");
}

void group_query_attention(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.has("--num-query-groups")) settings.set("num_query_groups", "1", given);
}

void num_query_groups(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.has("--group-query-attention"))
    given.refuse("Megatron-LM ignores it without --group-query-attention: give both, or neither");
  settings.set("num_query_groups", given.value(), given);
}

void no_position_embedding(const GivenFlag& given, MegatronSettings& settings) {
  const std::string* type = settings.value_of("--position-embedding-type");
  const bool other = type && (*type == "rope" || *type == "none");
  if (!other && !settings.has("--use-rotary-position-embeddings"))
    given.refuse("does not work with learned positions: use --position-embedding-type rope or none");
}

// Megatron-LM's latent attention uses YaRN unless --rope-type says otherwise, rotates neighbouring channels as DeepSeek
// does, and has its own defaults (arguments.py: _add_mla_args).
void multi_latent_attention(const GivenFlag& given, MegatronSettings& settings) {
  if (settings.has("--group-query-attention"))
    given.refuse("contradicts --group-query-attention: every head has its own keys and values");
  if (!settings.has("--qk-layernorm"))
    given.refuse("Megatron-LM then leaves latents as they are, which are always normalised here: add --qk-layernorm");
  settings.set("multi_latent_attention", "true", given);
  settings.set("rotary_interleaved", "true", given);
  if (!settings.has("--rope-type")) settings.set("rope_scaling_type", "yarn", given);
  if (!settings.has("--kv-lora-rank")) settings.set("kv_lora_rank", "32", given);
  if (!settings.has("--v-head-dim")) settings.set("v_head_dim", "128", given);
}

// Heads of latent attention have the sizes of --qk-head-dim, --qk-pos-emb-head-dim and --v-head-dim.
void kv_channels(const GivenFlag& given, MegatronSettings& settings) {
  if (settings.has("--multi-latent-attention"))
    return settings.ignore(given, "heads of latent attention have the size of --qk-head-dim");
  settings.set("kv_channels", given.value(), given);
}

void v_head_dim(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.has("--multi-latent-attention"))
    given.refuse(
        "Megatron-LM ignores it without --multi-latent-attention: set the key v_head_dim in a file (--config)");
  settings.set("v_head_dim", given.value(), given);
}

void hyper_connections(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.has("--num-residual-streams")) settings.set("num_residual_streams", "4", given);
}

void interpolation_factor(const GivenFlag& given, MegatronSettings& settings) {
  for (const char* other : {"--use-rope-scaling", "--rope-type"})
    if (settings.has(other)) given.refuse(std::string("contradicts ") + other + ": frequencies are scaled in one way");
  settings.set("rope_scaling_type", "linear", given);
  settings.set("rotary_scaling_factor", given.value(), given);
}

void use_rope_scaling(const GivenFlag& given, MegatronSettings& settings) {
  settings.set("rope_scaling_type", "llama3", given);
  settings.set("original_max_position_embeddings", "8192", given);
  if (!settings.has("--rope-scaling-factor")) settings.set("rotary_scaling_factor", "8", given);
}

void rope_scaling_factor(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.has("--use-rope-scaling"))
    given.refuse("Megatron-LM ignores it without --use-rope-scaling: give both, or neither");
  settings.set("rotary_scaling_factor", given.value(), given);
}

void rope_type(const GivenFlag& given, MegatronSettings& settings) {
  if (given.value() != "rope" && given.value() != "yarn") given.refuse("the types are rope and yarn");
  if (given.value() == "rope") return;
  if (settings.has("--use-rope-scaling"))
    given.refuse("contradicts --use-rope-scaling: frequencies are scaled in one way");
  settings.set("rope_scaling_type", "yarn", given);
}

// Megatron-LM compares with ten times the largest of a hundred steps.
void check_for_spikes(const GivenFlag& given, MegatronSettings& settings) {
  settings.set("skip_step_sigma", "6", given);
}

void recompute_method(const GivenFlag& given, MegatronSettings&) {
  if (given.value() != "uniform")
    given.refuse("blocks are recomputed one by one: leave it out, or use uniform with --recompute-num-layers 1");
}

void recompute_modules(const GivenFlag& given, MegatronSettings& settings) {
  constexpr std::array<std::string_view, 7> kKnown = {"core_attn", "layernorm", "moe_act",    "shared_experts",
                                                      "mlp",       "moe",       "mla_up_proj"};
  std::string modules;
  for (const std::string& name : given.values) {
    if (std::ranges::find(kKnown, name) == kKnown.end())
      given.refuse(
          "recomputed by themselves are layernorm, moe_act, shared_experts, mlp, moe and mla_up_proj; core_attn needs "
          "no recomputation. Leave the others out if memory allows (witan plan), or take --recompute-granularity full, "
          "which recomputes whole layers");
    modules += (modules.empty() ? "" : ",") + name;
  }
  settings.set("recompute_modules", modules, given);
}

void quick_geglu(const GivenFlag& given, MegatronSettings& settings) {
  settings.set("swiglu", "true", given);
  settings.set("glu_activation_scale", "1.702", given);
}

void token_dispatcher_type(const GivenFlag& given, MegatronSettings& settings) {
  const std::string& type = given.value();
  if (type != "alltoall" && type != "allgather" && type != "flex")
    given.refuse("the types are alltoall, allgather and flex");
  settings.set("moe_token_dispatcher_type", type == "allgather" ? type : "alltoall", given);
}

// The flag has one value, or one for each layer.
void cp_comm_type(const GivenFlag& given, MegatronSettings& settings) {
  const std::string& type = given.value();
  if (std::ranges::any_of(given.values, [&](const std::string& other) { return other != type; }))
    given.refuse("all layers have heads of one number and exchange them in one way: give one value, p2p or a2a");
  if (type != "p2p" && type != "a2a")
    given.refuse(
        "the types are p2p, a ring, and a2a, an exchange of heads: neither rings of groups that exchange "
        "heads (a2a+p2p) nor gathered keys and values (all_gather) are supported");
  settings.set("cp_comm_type", type, given);
}

// Halves of smaller micro-batches were measured to take as long, or longer (docs/performance-log.md, step 32).
void tp_comm_overlap(const GivenFlag& given, MegatronSettings& settings) {
  constexpr int64_t kWorthHalving = 32768;  // tokens of a micro-batch
  const auto size = [&](const char* flag) {
    const std::string* text = settings.value_of(flag);
    return text ? parse_number<int64_t>(*text).value_or(0) : 0;
  };
  if (size("--micro-batch-size") * size("--seq-length") < kWorthHalving)
    return settings.ignore(
        given,
        "halves of a micro-batch of less than 32768 tokens gain nothing: a larger --micro-batch-size "
        "would, and the key tp_comm_overlap in a file (--config) sets it all the same");
  settings.set("tp_comm_overlap", "true", given);
}

// With a ramp, Megatron-LM counts samples instead of iterations.
void rampup_batch_size(const GivenFlag& given, MegatronSettings& settings) {
  if (given.values.size() != 3) given.refuse("takes three numbers: START INCREMENT SAMPLES");
  if (settings.has("--train-iters"))
    given.refuse(
        "the batch size is ramped up in sample-based training alone, as in Megatron-LM: give --train-samples instead "
        "of "
        "--train-iters, and --lr-warmup-samples and --lr-decay-samples");
  settings.count_of("--train-samples", given);
  settings.set("rampup_batch_size", cat(given.values[0], ",", given.values[1], ",", given.values[2]), given);
}

void decrease_batch_size(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.has("--rampup-batch-size"))
    given.refuse(
        "a run starts only with its own batch size: give a --global-batch-size that --micro-batch-size times the "
        "data-parallel ranks divides");
  settings.set("decrease_batch_size_if_needed", "true", given);
}

namespace {

// Sets a number of samples: as samples in a run whose batch grows, otherwise as iterations.
void set_samples(const GivenFlag& given, MegatronSettings& settings, const std::string& key, bool exact) {
  if (settings.has("--rampup-batch-size"))
    settings.set(key + "_samples", std::to_string(count(given)), given);
  else
    settings.set(key + "_iters", iterations(given, settings, exact), given);
}

}  // namespace

void train_samples(const GivenFlag& given, MegatronSettings& settings) {
  set_samples(given, settings, "train", false);
}

void lr_decay_samples(const GivenFlag& given, MegatronSettings& settings) {
  set_samples(given, settings, "lr_decay", true);
}

void lr_wsd_decay_samples(const GivenFlag& given, MegatronSettings& settings) {
  set_samples(given, settings, "lr_wsd_decay", true);
}

void lr_warmup_samples(const GivenFlag& given, MegatronSettings& settings) {
  set_samples(given, settings, "lr_warmup", true);
}

void lr_warmup_fraction(const GivenFlag& given, MegatronSettings& settings) {
  const auto share = parse_number<double>(given.value());
  if (!share || !(*share >= 0 && *share <= 1)) given.refuse("must be a number from 0 to 1");
  // The share is relative to the steps of the decay, which are all steps by default.
  const bool samples = settings.has("--rampup-batch-size");
  const char* const unit = samples ? "samples" : "iters";
  double steps = 0;
  if (samples)
    steps = static_cast<double>(
        settings.count_of(settings.has("--lr-decay-samples") ? "--lr-decay-samples" : "--train-samples", given));
  else if (settings.has("--lr-decay-iters"))
    steps = static_cast<double>(settings.count_of("--lr-decay-iters", given));
  else if (settings.has("--train-iters"))
    steps = static_cast<double>(settings.count_of("--train-iters", given));
  else
    given.refuse("needs --lr-decay-iters or --train-iters as well; with samples, give --lr-warmup-samples");
  const double warmup = *share * steps, whole = std::round(warmup);
  if (std::abs(warmup - whole) > 1e-6 * std::max(warmup, 1.0))
    given.refuse(
        fmt::format("is {:.6g} of {:.0f} {}, and schedules count whole ones: use --lr-warmup-{} {:.0f} instead", warmup,
                    steps, samples ? "samples" : "iterations", unit, whole));
  settings.set(cat("lr_warmup_", unit), fmt::format("{:.0f}", whole), given);
}

namespace {

void require_changing_weight_decay(const GivenFlag& given, const MegatronSettings& settings) {
  const std::string* style = settings.value_of("--weight-decay-incr-style");
  if (!style || *style == "constant")
    given.refuse("needs --weight-decay-incr-style linear or cosine, without which weight decay is --weight-decay");
}

}  // namespace

void weight_decay(const GivenFlag& given, MegatronSettings& settings) {
  if (settings.value_of("--end-weight-decay"))
    return settings.ignore(given, "weight decay goes from --start-weight-decay to --end-weight-decay");
  settings.set("weight_decay", given.value(), given);
}

void start_weight_decay(const GivenFlag& given, MegatronSettings& settings) {
  require_changing_weight_decay(given, settings);
  settings.set("start_weight_decay", given.value(), given);
}

void end_weight_decay(const GivenFlag& given, MegatronSettings& settings) {
  require_changing_weight_decay(given, settings);
  settings.set("weight_decay", given.value(), given);
}

void weight_decay_incr_style(const GivenFlag& given, MegatronSettings& settings) {
  const bool both = settings.value_of("--start-weight-decay") && settings.value_of("--end-weight-decay");
  if (given.value() != "constant" && !both) given.refuse("needs --start-weight-decay and --end-weight-decay");
  settings.set("weight_decay_incr_style", given.value(), given);
}

// The rate of the token embedding and the output layer; position embeddings keep --lr, as in Megatron-LM.
void decoupled_lr(const GivenFlag& given, MegatronSettings& settings) {
  if (settings.has("--optimizer-groups"))
    given.refuse(
        "--optimizer-groups says how groups learn: give lr in a group with match = \"embedding.weight,head.weight\" "
        "there");
  const auto rate = [&](const std::string& text) {
    const auto value = parse_number<double>(text);
    if (!value || !(*value >= 0)) given.refuse("must be a number from 0 on");
    return fmt::format("{}", *value);
  };
  std::string group = "match = \"embedding.weight,head.weight\", lr = " + rate(given.value());
  if (const std::string* least = settings.value_of("--decoupled-min-lr")) group += ", min_lr = " + rate(*least);
  settings.set("optimizer_groups", "[{" + group + "}]", given);
}

void decoupled_min_lr(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.has("--decoupled-lr")) given.refuse("needs --decoupled-lr as well");
}

// Megatron-Core never implemented its own flag; tokens are dropped by an expert's capacity.
void token_dropping(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.has("--moe-expert-capacity-factor") && !settings.has("--moe-token-capacity-factor"))
    given.refuse(
        "Megatron-LM drops no tokens by this flag alone: give experts a capacity, --moe-expert-capacity-factor, beyond "
        "which they drop tokens (and --moe-pad-expert-input-to-capacity), or leave it out for dropless experts");
  settings.ignore(given, "experts drop the tokens beyond their capacity");
}

// The flag of the dropless layers in MegaBlocks' fork of Megatron-LM.
void megablocks(const GivenFlag& given, MegatronSettings& settings) {
  for (const char* other : {"--moe-expert-capacity-factor", "--moe-token-capacity-factor"})
    if (settings.has(other)) given.refuse(cat("contradicts ", other, ": dropless experts have no capacity"));
  settings.ignore(given, "experts without a capacity drop no tokens");
}

// Its profiler starts after step --profile-step-start, and stops after --profile-step-end.
void profile(const GivenFlag& given, MegatronSettings& settings) {
  const auto step = [&](const char* flag, int64_t otherwise) {
    const std::string* text = settings.value_of(flag);
    if (!text) return otherwise;
    const auto value = parse_number<int64_t>(*text);
    if (!value || *value < 0)
      given.refuse(cat("needs ", flag, " to be a whole number from 0 on, not ", clipped(*text)));
    return *value;
  };
  const StepRange steps{step("--profile-step-start", 10) + 1, step("--profile-step-end", 12)};
  if (steps.first > steps.last) given.refuse("needs --profile-step-end to be above --profile-step-start");
  settings.profile(steps);
}

}  // namespace rules
}  // namespace witan::cli
