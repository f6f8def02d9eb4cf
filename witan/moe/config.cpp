#include "witan/moe/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "witan/base/config/layer_pattern.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/kernels/moe/capacity.h"

namespace witan {
namespace {

BalanceLoss::Over balanced_over(const std::string& type) {
  if (type == "global_aux_loss") return BalanceLoss::Over::global_batch;
  return type == "seq_aux_loss" ? BalanceLoss::Over::sequence : BalanceLoss::Over::micro_batch;
}

// All combinations of the losses in any order, and the values without a loss.
std::vector<std::string> load_balancing_types() {
  const std::array<std::string, 3> losses = {"aux_loss", "seq_aux_loss", "global_aux_loss"};
  std::vector<std::string> types(losses.begin(), losses.end());
  for (size_t first = 0; first < 3; ++first)
    for (size_t second = 0; second < 3; ++second)
      if (first != second) types.push_back(losses[first] + "," + losses[second]);
  for (size_t i = 0; i < 6; ++i) {
    const std::string pair = types[3 + i];
    for (const std::string& third : losses)
      if (("," + pair + ",").find("," + third + ",") == std::string::npos) types.push_back(pair + "," + third);
  }
  types.insert(types.end(), {"quantile_balancing", "none"});
  return types;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list)
    if (c == ',')
      parts.emplace_back();
    else if (c != ' ')
      parts.back() += c;
  return parts;
}

double coefficient_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require<ConfigError>(error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value >= 0,
                       "moe_aux_loss_coeff takes numbers from 0 on, with commas between them, not ", clipped(text));
  return value;
}

}  // namespace

const char* BalanceLoss::tag() const {
  if (over == Over::global_batch) return "global_load_balancing_loss";
  return over == Over::sequence ? "seq_load_balancing_loss" : "load_balancing_loss";
}

bool MoeConfig::balances_last_load() const {
  const std::vector<BalanceLoss> losses = balance_losses();
  const bool global = std::ranges::find(losses, BalanceLoss::Over::global_batch, &BalanceLoss::over) != losses.end();
  return global && moe_global_load == "last_step";
}

std::vector<BalanceLoss> MoeConfig::balance_losses() const {
  const std::vector<std::string> coefficients = split(moe_aux_loss_coeff);
  std::vector<double> values;
  for (const std::string& text : coefficients) values.push_back(coefficient_of(text));
  if (moe_router_load_balancing_type == "none" || balances_by_quantiles()) return {};
  const std::vector<std::string> types = split(moe_router_load_balancing_type);
  std::vector<BalanceLoss> losses;
  require<ConfigError>(values.size() == types.size(), "moe_aux_loss_coeff = ", moe_aux_loss_coeff,
                       " must have a coefficient for each loss of moe_router_load_balancing_type = ",
                       moe_router_load_balancing_type, ": ", types.size(), " numbers with commas between them");
  for (size_t i = 0; i < types.size(); ++i) losses.push_back({balanced_over(types[i]), values[i]});
  std::ranges::sort(losses, {}, &BalanceLoss::over);
  return losses;
}

Fields MoeConfig::fields() {
  return {
      Field{"num_experts", &num_experts, "Number of experts per MoE layer (0: dense model)"}.between(0, 65536),
      Field{"moe_layer_freq", &moe_layer_freq,
            "Which layers are MoE layers: N for layers 0, N, 2N ..., or a list, 1 for MoE and 0 for dense, as in "
            "([0]*1+[1]*3)"},
      Field{"moe_ffn_hidden_size", &moe_ffn_hidden_size,
            "FFN hidden size of each expert; 0: ffn_hidden_size, which dense layers have"}
          .between(0, 1 << 30),
      Field{"moe_router_topk", &moe_router_topk, "Number of experts per token"}.at_least(1),
      Field{"moe_router_score_function", &moe_router_score_function, "How the router's logits become scores of experts"}
          .one_of({"softmax", "sigmoid", "sqrtsoftplus"}),
      Field{"moe_router_pre_softmax", &moe_router_pre_softmax, "Apply the softmax over all experts before top-k"},
      Field{"moe_router_norm_topk_prob", &moe_router_norm_topk_prob,
            "Divide the weights of a token's experts by their sum; auto: unless scores are a softmax before top-k"}
          .one_of({"auto", "true", "false"}),
      Field{"moe_router_topk_scaling_factor", &moe_router_topk_scaling_factor,
            "Factor by which the weights of a token's experts are multiplied"},
      Field{"moe_router_add_bias", &moe_router_add_bias, "Add a learned bias to the logits of the router"},
      Field{"moe_router_input_norm", &moe_router_input_norm,
            "Normalise the router's input by RMSNorm, with a learned factor of each channel, and divide the logits by "
            "the square root of hidden_size"},
      Field{"moe_router_expert_scale", &moe_router_expert_scale,
            "Multiply the weight of a token's expert by a learned factor of that expert"},
      Field{"moe_input_jitter_eps", &moe_input_jitter_eps,
            "Multiply the router's input by noise from 1 - eps to 1 + eps in training (0: none)"}
          .at_least(0),
      Field{"moe_router_selection", &moe_router_selection,
            "How experts are chosen: by the highest scores, forced (evenly at random, or askew), by the token's id, "
            "after "
            "Sinkhorn's normalisation, or by the experts"}
          .one_of({"topk", "uniform", "skew", "zipf", "hot", "hash", "sinkhorn", "expert_choice"}),
      Field{
          "moe_n_hash_layers", &moe_n_hash_layers,
          "First layers in which a table chooses a token's experts by its id, drawn at random or imported; the router "
          "weighs them by their scores"}
          .between(0, 100000),
      Field{"moe_router_skew", &moe_router_skew,
            "Share of tokens that moe_router_selection = skew sends to the first experts"}
          .at_least(0),
      Field{"moe_router_imbalance", &moe_router_imbalance,
            "Largest load of an expert over the mean that moe_router_selection = zipf aims at (0: 4, or num_experts / "
            "moe_router_topk where that is less)"}
          .at_least(0),
      Field{"moe_router_sinkhorn_iterations", &moe_router_sinkhorn_iterations,
            "Maximum number of iterations of Sinkhorn's algorithm"}
          .between(1, 10000),
      Field{"moe_router_sinkhorn_tolerance", &moe_router_sinkhorn_tolerance,
            "Mean change of the experts' factors at which Sinkhorn's algorithm ends"}
          .at_least(0),
      Field{"moe_router_num_groups", &moe_router_num_groups,
            "Groups of consecutive experts; a token's experts come from moe_router_group_topk of them (0: no groups)"}
          .at_least(0),
      Field{"moe_router_group_topk", &moe_router_group_topk, "Number of groups from which a token's experts come"}
          .at_least(0),
      Field{"moe_router_group_score_topk", &moe_router_group_score_topk,
            "How many of a group's best scores sum to its score (0: moe_router_topk / moe_router_group_topk)"}
          .at_least(0),
      Field{"moe_router_enable_expert_bias", &moe_router_enable_expert_bias,
            "Choose experts by score plus a bias, which each step moves towards an even load; needs sigmoid or "
            "sqrtsoftplus scores, or moe_router_pre_softmax"},
      Field{"moe_router_bias_update_rate", &moe_router_bias_update_rate, "How far a step moves an expert's bias"}
          .at_least(0),
      Field{
          "moe_router_load_balancing_type", &moe_router_load_balancing_type,
          "Load balancing: auxiliary losses per micro-batch, per sequence and of the global batch's load, a bias from "
          "quantiles of the logits, or none"}
          .one_of(load_balancing_types()),
      Field{"moe_aux_loss_coeff", &moe_aux_loss_coeff,
            "Coefficient of the load-balancing loss; for several losses one each, with commas between them"}
          .at_least(0),
      Field{
          "moe_global_load", &moe_global_load,
          "Load that global_aux_loss balances: the last step's, the same in every layout, or that of the global batch "
          "so far, as Megatron-LM has it, which depends on the number of data-parallel ranks"}
          .one_of({"last_step", "so_far"}),
      Field{"moe_z_loss_coeff", &moe_z_loss_coeff, "Coefficient of the router's z-loss"}.at_least(0),
      Field{"moe_expert_capacity_factor", &moe_expert_capacity_factor,
            "Capacity factor of an expert, relative to its even share of a micro-batch's tokens (0: dropless)"}
          .at_least(0),
      Field{"moe_token_drop_policy", &moe_token_drop_policy,
            "Which tokens an expert over capacity keeps: those of highest probability, or the first by position"}
          .one_of({"probs", "position"}),
      Field{"moe_pad_expert_input_to_capacity", &moe_pad_expert_input_to_capacity,
            "Accepted for Megatron-LM's flag; has no effect, since experts' inputs are not padded"},
      Field{"moe_grouped_gemm", &moe_grouped_gemm,
            "Compute all experts in one grouped GEMM; false: one after the other, as moe_expert_backend = sequential"},
      Field{"moe_expert_backend", &moe_expert_backend,
            "How products of experts are computed: in one kernel for all, with a block-sparse matrix of all experts' "
            "hidden units, or one expert after the other"}
          .one_of({"grouped", "block_sparse", "sequential"}),
      Field{"moe_expert_add_bias", &moe_expert_add_bias, "Give both linear layers of each expert a bias"},
      Field{
          "moe_latent_size", &moe_latent_size,
          "Width that tokens are projected down to before dispatch, and up from after combine (0: hidden_size, without "
          "projections)"}
          .between(0, 1 << 20),
      Field{"moe_token_dispatcher_type", &moe_token_dispatcher_type,
            "How tokens travel to experts: each to the ranks of its experts, or all tokens to all ranks"}
          .one_of({"alltoall", "allgather"}),
      Field{
          "moe_pool_factor", &moe_pool_factor,
          "Rows for which a rank's experts have receive buffers, relative to a balanced load; steps that need more are "
          "rerun in several passes (0: room for the worst case)"}
          .at_least(0),
      Field{"moe_exchange_factor", &moe_exchange_factor,
            "Fixed send capacity per pair of ranks that do not reach each other's memory, relative to a balanced load; "
            "steps that overflow are rerun (0: exact counts, read by the host)"}
          .at_least(0),
      Field{"moe_replicated_experts", &moe_replicated_experts,
            "Experts that a rank may copy from ranks with more rows and compute beside its own, in each layer and "
            "micro-batch (0: none)"}
          .between(0, 1024),
      Field{"moe_shared_expert_intermediate_size", &moe_shared_expert_intermediate_size,
            "FFN hidden size of the shared expert, which processes every token beside its routed experts (0: none)"}
          .at_least(0),
      Field{"moe_shared_expert_gate", &moe_shared_expert_gate,
            "Multiply the shared expert's output by a sigmoid of a projection of each token"},
      Field{"moe_parallel_mlp", &moe_parallel_mlp,
            "Give MoE layers a dense MLP of ffn_hidden_size beside the experts; both read the residual stream, and "
            "their outputs are added, each after norms of its own"},
      Field{"moe_shared_expert_overlap", &moe_shared_expert_overlap,
            "Compute the shared expert while tokens travel to the ranks of their experts"},
      Field{"moe_per_layer_logging", &moe_per_layer_logging,
            "Write each layer's router statistics to the metrics at every step, and to TensorBoard under "
            "Megatron-LM's names"},
  };
}

namespace {

void validate_weights(const MoeConfig& moe) {
  const bool softmax = moe.moe_router_score_function == "softmax", hashed = moe.moe_router_selection == "hash";
  require<ConfigError>(
      moe.moe_router_topk > 1 || moe.moe_router_pre_softmax || !softmax || hashed || moe.experts_choose(),
      "moe_router_topk = 1 needs moe_router_pre_softmax = true: a softmax over one score is always 1, and "
      "the router would not learn");
  require<ConfigError>(moe.moe_router_norm_topk_prob != "true" || moe.moe_router_topk > 1 || hashed,
                       "moe_router_norm_topk_prob = \"true\" needs moe_router_topk of at least 2: one weight divided "
                       "by itself is always 1, and the router would not learn");
  require<ConfigError>(moe.moe_router_norm_topk_prob != "false" || !softmax || moe.moe_router_pre_softmax,
                       "moe_router_norm_topk_prob = \"false\" needs moe_router_pre_softmax = true: a softmax over the "
                       "chosen sums to 1 by itself");
  require<ConfigError>(std::isfinite(moe.moe_router_topk_scaling_factor) && moe.moe_router_topk_scaling_factor > 0,
                       "moe_router_topk_scaling_factor = ", moe.moe_router_topk_scaling_factor,
                       " must be above 0: with weight 0 experts have no effect and learn nothing");
  require<ConfigError>(moe.moe_input_jitter_eps < 1, "moe_input_jitter_eps = ", moe.moe_input_jitter_eps,
                       " must be below 1: noise must not change the sign of an input");
}

void validate_groups(const MoeConfig& moe) {
  const int64_t groups = moe.moe_router_num_groups, chosen = moe.moe_router_group_topk;
  require<ConfigError>((groups > 0) == (chosen > 0), "moe_router_num_groups = ", groups,
                       " and moe_router_group_topk = ", chosen, ": set both, or neither");
  if (groups == 0) return;
  require<ConfigError>(moe.num_experts % groups == 0, "num_experts = ", moe.num_experts,
                       " is not divisible by moe_router_num_groups = ", groups);
  const int64_t size = moe.num_experts / groups, best = moe.group_score_topk();
  require<ConfigError>(chosen <= groups, "moe_router_group_topk = ", chosen,
                       " is more than moe_router_num_groups = ", groups);
  require<ConfigError>(moe.moe_router_topk <= chosen * size, "moe_router_topk = ", moe.moe_router_topk,
                       " is more than the experts of moe_router_group_topk = ", chosen, " groups of ", size);
  require<ConfigError>(best > 0, "moe_router_topk = ", moe.moe_router_topk,
                       " is less than moe_router_group_topk = ", chosen,
                       ", so that no score of a group would count: set moe_router_group_score_topk, as 1");
  require<ConfigError>(best <= size, "moe_router_group_score_topk = ", best,
                       " (0: moe_router_topk / "
                       "moe_router_group_topk) is more than the ",
                       size, " experts of a group");
}

// The imbalance at which every token visits one and the same expert.
double most_imbalance(const MoeConfig& moe) {
  return static_cast<double>(moe.num_experts) / static_cast<double>(moe.moe_router_topk);
}

void validate_selection(const MoeConfig& moe) {
  const std::string& selection = moe.moe_router_selection;
  require<ConfigError>(moe.moe_router_skew <= 1, "moe_router_skew = ", moe.moe_router_skew, " is a share: at most 1");
  if (selection == "zipf") {
    const double most = most_imbalance(moe), asked = moe.moe_router_imbalance;
    require<ConfigError>(asked <= most, "moe_router_imbalance = ", asked, ": no expert's load exceeds ", most,
                         " times the mean where each token has moe_router_topk = ", moe.moe_router_topk,
                         " of num_experts = ", moe.num_experts, ": set at most that, or 0 for the default");
    require<ConfigError>(asked == 0 || asked >= 1, "moe_router_imbalance = ", asked,
                         ": the largest load is no less than the mean: set at least 1, or 0 for the default");
  }
  require<ConfigError>(moe.moe_n_hash_layers == 0 || (selection == "topk" && !moe.balances_by_quantiles()),
                       "moe_n_hash_layers = ", moe.moe_n_hash_layers,
                       " chooses experts by a table in the first layers, and by scores in others: set "
                       "moe_router_selection = \"topk\", without quantile_balancing");
  if (selection == "topk") return;
  require<ConfigError>(!moe.moe_router_enable_expert_bias && moe.moe_router_num_groups == 0,
                       "moe_router_selection = \"", selection,
                       "\" does not choose by a token's scores alone, which moe_router_enable_expert_bias and "
                       "moe_router_num_groups change: leave them out, or set moe_router_selection = \"topk\"");
  require<ConfigError>(!moe.experts_choose() || moe.moe_token_drop_policy == "probs",
                       "moe_router_selection = \"expert_choice\" needs moe_token_drop_policy = \"probs\": experts "
                       "choose by scores, not by position");
}

}  // namespace

MoeConfig MoeConfig::with_table(int64_t vocabulary) const {
  MoeConfig with = *this;
  with.table_tokens = vocabulary;
  with.moe_router_num_groups = with.moe_router_group_topk = with.moe_router_group_score_topk = 0;
  return with;
}

void MoeConfig::validate(int64_t num_layers) const {
  if (num_experts == 0) return;
  require<ConfigError>(moe_router_topk <= num_experts, "moe_router_topk = ", moe_router_topk,
                       " is more than num_experts = ", num_experts);
  validate_weights(*this);
  require<ConfigError>(
      !moe_router_enable_expert_bias || moe_router_score_function != "softmax" || moe_router_pre_softmax,
      "moe_router_enable_expert_bias = true needs moe_router_score_function = \"sigmoid\" or \"sqrtsoftplus\", or "
      "moe_router_pre_softmax = true: logits have no scale of their own that a bias could be added to. Set one of "
      "these, "
      "or balance the load by a loss (moe_aux_loss_coeff)");
  validate_groups(*this);
  validate_selection(*this);
  balance_losses();  // throws where the two keys disagree
  require<ConfigError>(
      !balances_by_quantiles() || (moe_router_selection == "topk" && moe_router_num_groups == 0),
      "moe_router_load_balancing_type = quantile_balancing chooses by logits and its bias alone: leave "
      "moe_router_selection and moe_router_num_groups out, or balance otherwise");
  require<ConfigError>(!balances_by_quantiles() || !moe_router_enable_expert_bias,
                       "moe_router_load_balancing_type = quantile_balancing sets a bias of its own: leave "
                       "moe_router_enable_expert_bias out");
  require<ConfigError>(!balances_by_quantiles() || moe_router_topk < num_experts,
                       "moe_router_load_balancing_type = quantile_balancing needs an expert that a token does not "
                       "choose: moe_router_topk = ",
                       moe_router_topk, " of num_experts = ", num_experts, " leaves none");
  require<ConfigError>(moe_grouped_gemm || moe_expert_backend != "block_sparse",
                       "moe_grouped_gemm = false computes one expert after the other, and moe_expert_backend = "
                       "\"block_sparse\" all together: leave one of the two out");
  require<ConfigError>(!moe_pad_expert_input_to_capacity || moe_expert_capacity_factor > 0,
                       "moe_pad_expert_input_to_capacity = true needs a capacity to pad to: set "
                       "moe_expert_capacity_factor, as 1.25");
  require<ConfigError>(!moe_shared_expert_gate || has_shared_experts(),
                       "moe_shared_expert_gate = true needs a shared expert to gate: set "
                       "moe_shared_expert_intermediate_size");
  require<ConfigError>(!moe_shared_expert_overlap || has_shared_experts(),
                       "moe_shared_expert_overlap = true needs a shared expert to compute while tokens travel: set "
                       "moe_shared_expert_intermediate_size");
  require<ConfigError>(!moe_shared_expert_overlap || moe_token_dispatcher_type == "alltoall",
                       "moe_shared_expert_overlap = true overlaps with tokens on their way to their experts, but "
                       "moe_token_dispatcher_type = \"",
                       moe_token_dispatcher_type,
                       "\" gathers all tokens first: set \"alltoall\", or moe_shared_expert_overlap = false");
  require<ConfigError>(moe_pool_factor == 0 || moe_pool_factor >= 1, "moe_pool_factor = ", moe_pool_factor,
                       " has no room for an even load: set 1 or more, as 1.5, or 0 for the worst case");
  require<ConfigError>(moe_pool_factor == 0 || moe_token_dispatcher_type == "alltoall",
                       "moe_pool_factor bounds what other ranks send to a rank, but moe_token_dispatcher_type = \"",
                       moe_token_dispatcher_type, "\" gathers all tokens: set \"alltoall\", or moe_pool_factor = 0");
  require<ConfigError>(moe_exchange_factor == 0 || moe_exchange_factor >= 1,
                       "moe_exchange_factor = ", moe_exchange_factor,
                       " has no room for an even load: set 1 or more, as 1.5, or 0 for exact counts");
  require<ConfigError>(moe_exchange_factor == 0 || moe_token_dispatcher_type == "alltoall",
                       "moe_exchange_factor bounds what a rank sends to another, but moe_token_dispatcher_type = \"",
                       moe_token_dispatcher_type,
                       "\" gathers all tokens: set \"alltoall\", or moe_exchange_factor = 0");
  require<ConfigError>(moe_replicated_experts == 0 || moe_token_dispatcher_type == "alltoall",
                       "moe_replicated_experts = ", moe_replicated_experts,
                       " replicates hot experts on ranks with fewer rows, but moe_token_dispatcher_type = \"",
                       moe_token_dispatcher_type,
                       "\" sends all tokens to all ranks: set \"alltoall\", or moe_replicated_experts = 0");
  require<ConfigError>(moe_replicated_experts == 0 || moe_expert_backend != "block_sparse",
                       "moe_replicated_experts = ", moe_replicated_experts,
                       " computes with copies of other ranks' experts, which moe_expert_backend = \"block_sparse\" has "
                       "no product for: set \"grouped\", or moe_replicated_experts = 0");
  const std::vector<bool> layers = moe_layers(num_layers);
  require<ConfigError>(std::find(layers.begin(), layers.end(), true) != layers.end(),
                       "moe_layer_freq = ", moe_layer_freq,
                       " makes no layer an MoE layer: set num_experts = 0 for a dense model");
}

kernels::Scoring MoeConfig::scoring() const {
  using kernels::Scores;
  const double scaling = moe_router_topk_scaling_factor;
  const bool normalised = moe_router_norm_topk_prob != "false";
  if (moe_router_score_function == "sigmoid") return {Scores::sigmoid, normalised, scaling};
  if (moe_router_score_function == "sqrtsoftplus") return {Scores::sqrtsoftplus, normalised, scaling};
  // A softmax over all experts, divided by the sum over the chosen ones, is a softmax over the chosen logits.
  const bool before = moe_router_pre_softmax && moe_router_norm_topk_prob != "true";
  return {before ? Scores::softmax : Scores::softmax_of_chosen, true, scaling};
}

int64_t MoeConfig::group_score_topk() const {
  return moe_router_group_score_topk > 0 ? moe_router_group_score_topk : moe_router_topk / moe_router_group_topk;
}

int64_t MoeConfig::expert_capacity(int64_t tokens) const {
  if (moe_expert_capacity_factor == 0 && !experts_choose()) return tokens;
  return kernels::even_capacity(tokens, moe_router_topk, num_experts, capacity_factor());
}

double MoeConfig::zipf_imbalance() const {
  return moe_router_imbalance > 0 ? moe_router_imbalance : std::min(4.0, most_imbalance(*this));
}

double MoeConfig::capacity_factor() const {
  return moe_expert_capacity_factor == 0 && experts_choose() ? 1 : moe_expert_capacity_factor;
}

std::vector<bool> MoeConfig::moe_layers(int64_t num_layers) const {
  if (num_experts == 0) return std::vector<bool>(static_cast<size_t>(num_layers), false);
  return choose_layers("moe_layer_freq", moe_layer_freq, num_layers, OfPeriod::first);
}

}  // namespace witan
