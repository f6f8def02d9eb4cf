// The keys of objectives and of sampled batches, with their help and bounds, and what they demand of the other keys.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/train/config/config.h"

namespace witan {

Fields ObjectiveConfig::fields() {
  return {
      Field{"objective", &objective,
            "What training minimises: the cross entropy of the next token, the clipped surrogate of policy gradients "
            "(GRPO, Dr. GRPO, DAPO, GSPO), which reads the columns advantages and old_logprobs, or the loss of "
            "preferences between two answers (DPO)"}
          .one_of({"cross_entropy", "policy", "preference"}),
      Field{
          "reference", &reference,
          "Frozen model that kl_loss_coef and preferences compare with: base, the trained model without its adapters; "
          "start, the weights that the run starts from; columns, the column ref_logprobs of token shards; a model's "
          "folder or the name of a run, as in init_from; auto: columns for policy without rollouts, else base with "
          "lora_rank and start without"},
      Field{"clip_ratio_low", &clip_ratio_low,
            "With objective = policy, ratios of probabilities below 1 - clip_ratio_low have no gradient where the "
            "advantage is negative"}
          .between(0, 1),
      Field{"clip_ratio_high", &clip_ratio_high,
            "With objective = policy, ratios of probabilities above 1 + clip_ratio_high have no gradient where the "
            "advantage is positive"}
          .at_least(0),
      Field{"importance_sampling_level", &importance_sampling_level,
            "With objective = policy, whether each token has a ratio, or all tokens of a sequence the geometric mean "
            "of theirs (GSPO)"}
          .one_of({"token", "sequence"}),
      Field{"importance_sampling_cap", &importance_sampling_cap,
            "With objective = policy, weigh tokens by the ratio of old_logprobs to the sampler's (column "
            "rollout_logprobs), truncated at this value (0: no weights)"}
          .at_least(0),
      Field{"loss_agg_mode", &loss_agg_mode,
            "With objective = policy, how tokens are averaged: over all tokens of the global batch (DAPO), within each "
            "sequence first (GRPO), or summed within each sequence and divided by loss_scale_factor (Dr. GRPO)"}
          .one_of({"token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"}),
      Field{"loss_scale_factor", &loss_scale_factor,
            "Divisor of a sequence's summed losses with loss_agg_mode = seq_mean_token_sum_norm (0: seq_length)"}
          .at_least(0),
      Field{"kl_loss_coef", &kl_loss_coef,
            "With objective = policy, coefficient of the estimated KL divergence (k3) from the reference (0: off)"}
          .at_least(0),
      Field{"dpo_beta", &dpo_beta,
            "With objective = preference, factor of log ratios to the reference in rewards: the larger, the closer the "
            "model stays to it"}
          .above(0),
      Field{"dpo_loss_type", &dpo_loss_type,
            "With objective = preference, the loss of a pair's rewards: that of DPO, the same of means over tokens, "
            "robust DPO, a hinge, or IPO"}
          .one_of({"sigmoid", "sigmoid_norm", "robust", "hinge", "ipo"}),
      Field{"dpo_label_smoothing", &dpo_label_smoothing,
            "Probability that a pair's answers are the wrong way round, with dpo_loss_type = sigmoid, sigmoid_norm or "
            "robust"}
          .between(0, 0.49),
      Field{"dpo_reference_free", &dpo_reference_free,
            "With objective = preference, compare with a model that gives all answers the same probability"},
      Field{"rpo_alpha", &rpo_alpha,
            "With objective = preference, weight of the mean loss of the chosen answer's tokens (RPO; 0: off)"}
          .at_least(0),
  };
}

Fields RolloutConfig::fields() {
  Fields fields = {
      Field{"rollouts", &rollouts,
            "Sample the batches: each step answers the prompts of conversations (sft) with the training weights, and "
            "trains on the rewards (objective = policy)"},
      Field{"num_generations", &num_generations, "Answers sampled for each prompt: the group of GRPO"}.between(2, 4096),
      Field{
          "max_completion_length", &max_completion_length,
          "Maximum number of tokens in a sampled answer, or in all turns of one; with the prompt at most seq_length + "
          "1"}
          .at_least(1),
      Field{"max_turns", &max_turns,
            "Answers in a conversation: after each but the last, reward_command may write the next messages, such as "
            "results of tools (1: one answer)"}
          .between(1, 1000),
      Field{"rollout_temperature", &rollout_temperature,
            "Temperature of sampled answers: logits are divided by it, in sampling and in training alike; without "
            "rollouts that of the answers in token shards"}
          .above(0),
      Field{"steps_per_generation", &steps_per_generation,
            "Sample the answers of N steps at once: the last of them is then N - 1 updates behind"}
          .at_least(1),
      Field{"rollout_batch_size", &rollout_batch_size,
            "Answers that a rank samples at a time; an answer that ends makes room for another (0: all)"}
          .at_least(0),
      Field{"stop_strings", &stop_strings,
            "Text that ends an answer, and is no part of it; a JSON array of several: [\"</answer>\", \"\\n\\n\"]"},
      Field{"router_replay", &router_replay,
            "Train each token with the experts that routers chose for it while sampling"},
      Field{"max_num_gen_batches", &max_num_gen_batches,
            "Replace a prompt whose answers all have the same reward by another one, until each prompt of the step was "
            "replaced N - 1 times: DAPO's dynamic sampling (1: off)"}
          .between(1, 100),
      Field{"mask_truncated_completions", &mask_truncated_completions,
            "Do not train on answers that no end token ended: they are rewarded, and give no gradient"},
      Field{"rollout_eval_prompts", &rollout_eval_prompts,
            "Prompts of the validation split that are answered in each evaluation, for their mean reward (0: none)"}
          .at_least(0),
      Field{"rollout_eval_temperature", &rollout_eval_temperature,
            "Temperature of the answers of rollout_eval_prompts (0: greedy)"}
          .at_least(0),
      Field{"keep_rollouts", &keep_rollouts,
            "Newest steps whose answers stay in RUN/rollouts, beside those that a checkpoint resumes with (0: all)"}
          .at_least(0),
      Field{"reward", &reward,
            "One or several of exact, number and math (compare with the conversation's own answer), regex, format, "
            "length and command, with commas between them: a sum by reward_weights"},
      Field{"reward_weights", &reward_weights, "Weight of each of reward, with commas between them (empty: 1)"},
      Field{"reward_regex", &reward_regex,
            "Regular expression for reward = regex: its last match, or the first group of it, is the answer"},
      Field{"reward_format", &reward_format,
            "Regular expression for reward = format: answers must match it as a whole"},
      Field{"reward_command", &reward_command,
            "Shell command that reads lines {\"prompt\", \"completion\", \"answer\"} and writes a line with a number "
            "or {\"reward\": NUMBER} for each; with max_turns above 1 also {\"messages\": [...]}, the next ones"},
      Field{"reward_timeout", &reward_timeout, "Seconds after which reward_command is killed"}.above(0),
      Field{"reward_workers", &reward_workers,
            "Programs (reward_command) that share the answers of a rank and run at the same time"}
          .between(1, 32),
      Field{"reward_retries", &reward_retries, "How often reward_command is run again after it has failed"}.between(
          0, 100),
      Field{"reward_memory_limit", &reward_memory_limit,
            "MiB of address space that each process of reward_command may have (0: no limit)"}
          .at_least(0),
      Field{"scale_rewards", &scale_rewards,
            "Divide advantages by the standard deviation of the group's rewards (GRPO); Dr. GRPO does not"},
      Field{"overlong_buffer_len", &overlong_buffer_len,
            "Lower the rewards of answers within N tokens of max_completion_length (0: off)"}
          .at_least(0),
      Field{"overlong_penalty_factor", &overlong_penalty_factor,
            "What the reward is lowered by at max_completion_length, if overlong_buffer_len is set"}
          .at_least(0),
  };
  for (Field& field : cache.fields()) fields.push_back(std::move(field));
  return fields;
}

std::vector<std::string> RolloutConfig::stops() const {
  if (stop_strings.empty()) return {};
  if (stop_strings.front() != '[') return {stop_strings};
  std::vector<std::string> stops;
  try {
    parse_json(stop_strings, "stop_strings").get_to(stops);
  } catch (const std::exception&) {
    stops.clear();
  }
  require<ConfigError>(!stops.empty() && std::ranges::find(stops, "") == stops.end(), "stop_strings = ", stop_strings,
                       ": begins with [, but is no JSON array of texts that are not empty: write it as "
                       "[\"</answer>\", \"\\n\\n\"]");
  return stops;
}

ReferenceKind RunConfig::reference() const {
  const bool policy = objective.objective == "policy";
  const bool compares =
      policy ? objective.kl_loss_coef > 0 : objective.is_preference() && !objective.dpo_reference_free;
  if (!compares) return ReferenceKind::none;
  if (objective.reference == "base") return ReferenceKind::base;
  if (objective.reference == "start") return ReferenceKind::start;
  if (objective.reference == "columns") return ReferenceKind::columns;
  if (objective.reference != "auto") return ReferenceKind::source;
  if (policy && !rollout.rollouts) return ReferenceKind::columns;
  return model.lora_rank > 0 ? ReferenceKind::base : ReferenceKind::start;
}

namespace {

// Pairs of answers have an objective of their own, and it reads nothing else.
void validate_preferences(const RunConfig& config) {
  const bool pairs = config.data.preferences;
  require<ConfigError>(!pairs || config.data.sft,
                       "preferences = true reads pairs of answers to conversations; set sft = true");
  require<ConfigError>(pairs == config.objective.is_preference(), "objective = ", config.objective.objective,
                       pairs ? " with preferences = true would learn from rejected answers like from any text; set "
                               "objective = preference"
                             : " learns from pairs of answers; set sft = true and preferences = true");
  if (!pairs) return;
  require<ConfigError>(config.data.loss_on == "answers", "preferences = true with loss_on = ", config.data.loss_on,
                       ": the two texts of a pair differ in their answers alone; set loss_on = answers");
}

void validate_reference(const RunConfig& config) {
  const ReferenceKind kind = config.reference();
  const std::string given = cat("reference = ", config.objective.reference);
  if (kind == ReferenceKind::base) {
    require<ConfigError>(config.model.lora_rank > 0, given,
                         " is the model without its adapters, and lora_rank = 0: set reference = start, or lora_rank");
    for (const auto& [key, folder] :
         {std::pair{"record_routes", &config.train.record_routes}, {"replay_routes", &config.train.replay_routes}})
      require<ConfigError>(folder->empty(), key, " = ", *folder,
                           " is for the passes of one model, and the base model below its adapters runs as the "
                           "reference; set reference = start, or leave out ",
                           key);
  }
  if (kind != ReferenceKind::columns) return;
  require<ConfigError>(!config.rollout.rollouts, given,
                       ": sampled answers have no column ref_logprobs; set reference = start, or base with lora_rank");
  require<ConfigError>(!config.objective.is_preference(), given,
                       ": preferences are read from rows of answers, which have no column ref_logprobs; set reference "
                       "= start, or base with lora_rank");
}

}  // namespace

void ObjectiveConfig::validate_within(const RunConfig& config) const {
  validate_preferences(config);
  validate_reference(config);
  if (is_cross_entropy()) return;
  require<ConfigError>(config.model.mtp_num_layers == 0, "objective = ", objective,
                       " has no loss for the modules of mtp_num_layers = ", config.model.mtp_num_layers,
                       "; set mtp_num_layers = 0");
}

// Rows have one answer each.
void RolloutConfig::validate_within(const RunConfig& config) const {
  if (!rollouts) return;
  const auto needs = [](bool holds, const auto&... why) { require<ConfigError>(holds, "rollouts = true ", why...); };
  needs(config.objective.objective == "policy", "trains on rewards; set objective = policy");
  needs(config.data.sft, "samples the last answers of conversations; set sft = true");
  needs(config.data.packing == "none", "trains on one answer in a row; set packing = none");
  needs(config.train.replay_interval == 0 && config.train.rampup_batch_size.empty() && !config.train.rewinds(),
        "samples rows as steps consume them: set replay_interval = 0, rampup_batch_size empty, and on_nan and on_spike "
        "to skip or stop");
  const int64_t unit = num_generations * config.parallel.data_ranks();
  needs(config.train.global_batch_size % unit == 0, "keeps the num_generations = ", num_generations,
        " answers of a prompt on one of ", config.parallel.data_ranks(),
        " data-parallel ranks: global_batch_size = ", config.train.global_batch_size, " must be a multiple of ", unit);
  needs(max_completion_length <= config.data.seq_length, "samples at most seq_length = ", config.data.seq_length,
        " tokens after a prompt, and max_completion_length = ", max_completion_length,
        " asks for more; lower it, or raise seq_length, which has room for prompt and answer together");
  needs(rollout_eval_prompts == 0 || (config.data.held_out_fraction > 0 && config.train.eval_iters > 0),
        "with rollout_eval_prompts = ", rollout_eval_prompts,
        " answers prompts of the validation split in each evaluation: set held_out_fraction and eval_iters above 0");
  validate_rewards();
  needs(max_turns == 1 || rewards_by(WeightedReward::Kind::command), "with max_turns = ", max_turns,
        " asks reward_command for what follows an answer, and reward = ", reward,
        " has no program; add command to reward, or set max_turns = 1");
  stops();
  resolve_cache(cache, config.model, {.repeatable = config.parallel.batch_invariant_mode});
  if (router_replay) {
    needs(config.model.moe.num_experts > 0,
          "has no routes in a dense model (num_experts = 0); set router_replay = false");
    needs(config.model.moe.moe_router_selection != "expert_choice",
          "with moe_router_selection = expert_choice has no number of experts per token to replay; set router_replay = "
          "false");
    needs(config.train.record_routes.empty() && config.train.replay_routes.empty(),
          "with router_replay = true replays the routes of its answers: leave record_routes and replay_routes empty");
    needs(config.parallel.model_ranks() == 1,
          "records routes on ranks that have all layers and tokens, which tensor, context and pipeline parallelism "
          "divide: set their sizes to 1, or router_replay = false");
  }
  needs(overlong_buffer_len <= max_completion_length, "has overlong_buffer_len = ", overlong_buffer_len,
        " above max_completion_length = ", max_completion_length);
}

}  // namespace witan
