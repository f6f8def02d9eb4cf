// The configuration of a run: the configurations of its components, and keys of its own.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/data/batches/batch_ramp.h"
#include "witan/data/datasets/split.h"
#include "witan/generate/cache_options.h"
#include "witan/model/config.h"
#include "witan/optim/config.h"
#include "witan/parallel/config.h"
#include "witan/tokenizer/training/bpe_trainer.h"

namespace witan {

struct RunConfig;

// The data that is read, and how it becomes samples. The help of each key is in fields().
struct DataConfig {
  std::string data;             // files and folders, separated by commas (paths_of()); empty: the perl-doc package
  std::string data_path;        // prefix of prepared token shards, instead of `data`
  std::string data_weights;     // of the datasets of data_path, separated by commas; empty: the weights in data_path
  double data_temperature = 1;  // weights are raised to the power of 1 / data_temperature
  double data_max_epochs = 0;   // most epochs of each dataset in a mixture; 0: unlimited
  std::string data_schedule;    // changes of the weights: STEP=W1,W2;STEP=…
  std::string data_samples = "witan";  // the order of samples: witan | megatron
  std::string data_packing = "none";   // none | best_fit; for text in Witan's order
  std::string split = "969,30,1";      // for data_samples = "megatron": train, validation and test
  std::string train_data_path, valid_data_path, test_data_path;  // for data_samples = "megatron": paths of each split
  std::string data_cache_path;  // for data_samples = "megatron": folder of indices; empty: beside the data
  std::string tokenizer;        // a tokenizer's file or folder; empty: one is trained on the data
  std::string json_key = "text";
  std::string valid_data;    // additional validation sets: NAME=FILE, separated by commas
  bool sft = false;          // the data are conversations, in the messages format
  bool preferences = false;  // with sft: rows hold a preferred and a rejected answer
  std::string messages_key = "messages";
  std::string chat_template;            // a file; empty: the tokenizer's own
  std::string loss_on = "answers";      // with sft: answers | all
  bool content_special_tokens = false;  // with sft: special tokens spelled in messages are control tokens
  std::string packing = "greedy";       // with sft: greedy | best_fit | none
  double held_out_fraction = kHeldOutFraction;
  double bad_row_share = 0.1;
  bool replace_invalid_utf8 = false;
  int64_t seq_length = 256;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  BpeTrainerConfig bpe;

  // Whether prepared tokens are read, from data_path or the paths of the splits, instead of text.
  bool reads_shards() const { return !data_path.empty() || !train_data_path.empty(); }
  // Whether a key says how datasets are mixed.
  bool is_weighted() const {
    return !data_weights.empty() || !data_schedule.empty() || data_temperature != 1 || data_max_epochs > 0;
  }
  bool megatron_samples() const { return data_samples == "megatron"; }
  // Whether a sample packs several documents that do not attend to each other.
  bool packs() const { return sft || data_packing != "none"; }

  Fields fields();
  void validate() const;  // throws ConfigError

 private:
  void validate_megatron() const;
};

// Name of the validation set that data_samples = "megatron" adds: its test split.
inline constexpr const char* kTestSet = "test";

// The "NAME=FILE" pairs of valid_data, which are separated by commas, so that no FILE may contain one. Throws
// ConfigError for a malformed list, a repeated name, and a name with characters other than letters, digits, _ and -.
std::vector<std::pair<std::string, std::string>> parse_validation_sets(const std::string& valid_data);

// The length of training, batch sizes, and what is written on the way.
struct TrainConfig {
  std::string run = "default";
  std::string runs_folder = "runs";
  int64_t train_iters = 1000;
  int64_t train_samples = 0;  // 0: train_iters decides; above 0: resolve() computes train_iters
  int64_t micro_batch_size = 4;
  int64_t global_batch_size = 8;
  std::string
      rampup_batch_size;  // "START,INCREMENT,SAMPLES" (data/batches/batch_ramp.h); empty: always global_batch_size
  bool decrease_batch_size_if_needed = false;
  int64_t seed = 1234;
  int64_t eval_interval = 100;
  int64_t eval_iters = 8;
  bool full_validation = false;
  int64_t log_interval = 1;
  int64_t save_interval = 200;
  int64_t exit_interval = 0;         // steps; 0: off
  double exit_duration_in_mins = 0;  // age of the process; 0: off
  int64_t keep_last = 2;
  int64_t keep_best = 0;                // checkpoints of lowest validation loss, kept in addition
  int64_t early_stopping_patience = 0;  // evaluations; 0: off
  bool check_states = false;
  int64_t check_states_interval = 0;  // steps; 0: off
  bool check_messages = false;
  int64_t replay_interval = 0;  // steps; 0: off
  int64_t most_skipped = 10;
  std::string on_nan = "skip", on_spike = "skip";  // skip | rewind | stop (loop/anomaly.h)
  int64_t max_rewinds = 10;
  int64_t keep_anomalies = 2;        // how many folders
  double straggler_threshold = 1.2;  // times the median of the ranks; 0: off
  std::string sample_prompt = "The ";
  int64_t sample_tokens = 120;
  double sample_temperature = 0.7;
  int64_t sample_interval = 0;  // steps; 0: one sample, at the end
  std::string sample_prompts;   // a file; empty: sample_prompt
  std::string record_routes;    // a folder; empty: routes are not recorded
  std::string replay_routes;    // a folder that record_routes wrote; empty: no replay
  std::string upcycle;          // a dense checkpoint that a new run starts from; empty: random weights
  std::string upcycle_method = "copied";
  double upcycle_noise = 0;            // relative to the standard deviation of a dense matrix
  double upcycle_drop_ratio = 0.5;     // for upcycle_method = "drop"
  std::string init_from;               // a model whose weights a new run starts from
  std::string init_base;               // the base model of adapters in init_from; empty: the one that these name
  std::string init_state = "weights";  // weights | training: what is taken from init_from

  Fields fields();
  // Whether a new run continues the training of init_from, instead of starting at step 0 from its weights.
  bool branches() const { return init_state == "training"; }
  // Whether the run may return to an older checkpoint (on_nan, on_spike).
  bool rewinds() const { return on_nan == "rewind" || on_spike == "rewind"; }
  // Whether a line of metrics is due after `step`. A checkpoint ends an interval too, so that it need not store the
  // interval's sums.
  bool closes_interval(int64_t step) const;
};

// The quantity that training minimises (step/objective.h). Keys have the names of verl (verl/workers/config/actor.py)
// or, where it has none, of TRL.
struct ObjectiveConfig {
  std::string objective = "cross_entropy";  // cross_entropy | policy | preference
  std::string reference = "auto";           // auto | base | start | columns, or a model whose weights it has
  double clip_ratio_low = 0.2, clip_ratio_high = 0.2;
  std::string importance_sampling_level = "token";  // token | sequence
  double importance_sampling_cap = 0;               // 0: no importance weights
  std::string loss_agg_mode = "token_mean";         // token_mean | seq_mean_token_mean | seq_mean_token_sum_norm
  int64_t loss_scale_factor = 0;                    // of seq_mean_token_sum_norm; 0: seq_length
  double kl_loss_coef = 0;
  double dpo_beta = 0.1;
  std::string dpo_loss_type = "sigmoid";  // sigmoid | sigmoid_norm | robust | hinge | ipo
  double dpo_label_smoothing = 0;
  bool dpo_reference_free = false;
  double rpo_alpha = 0;  // 0: off

  Fields fields();
  bool is_cross_entropy() const { return objective == "cross_entropy"; }
  bool is_preference() const { return objective == "preference"; }
  // Checks the keys against those of the run. Throws ConfigError.
  void validate_within(const RunConfig& config) const;
};

// The frozen model that an objective compares with.
enum class ReferenceKind : uint8_t {
  none,
  columns,  // its log probabilities are in the column ref_logprobs
  base,     // the trained model without its adapters
  start,    // the weights that the run starts from
  source,   // those of another model
};

// A part of an answer's reward.
struct WeightedReward {
  enum class Kind : uint8_t { exact, number, math, regex, format, length, command };
  Kind kind = Kind::exact;
  double weight = 1;

  const char* name() const;
};

// Answers that the training weights sample, and their rewards (rollouts/rollouts.h). Keys have the names of TRL
// (trl/trainer/grpo_config.py) or, where it has none, of verl.
struct RolloutConfig {
  bool rollouts = false;  // with objective = policy and sft
  int64_t num_generations = 8;
  int64_t max_completion_length = 256;  // tokens
  int64_t max_turns = 1;                // answers of a conversation, between which reward_command writes messages
  double rollout_temperature = 1;       // of sampled answers, and of the log probabilities that are trained on
  int64_t steps_per_generation = 1;
  int64_t rollout_batch_size = 0;  // answers; 0: all
  CacheOptions cache;
  std::string stop_strings;  // one, or a JSON array of them
  bool router_replay = false;
  int64_t max_num_gen_batches = 1;  // samplings of a group until its rewards differ
  bool mask_truncated_completions = false;
  int64_t rollout_eval_prompts = 0;     // of the validation split, answered in each evaluation
  double rollout_eval_temperature = 0;  // 0: greedy
  int64_t keep_rollouts = 0;            // steps whose answers stay in RUN/rollouts; 0: all
  std::string reward = "exact";         // one or several kinds of WeightedReward, with commas between them
  std::string reward_weights;           // one for each, with commas between them; empty: 1
  std::string reward_regex, reward_format;
  std::string reward_command;
  double reward_timeout = 60;  // seconds
  int64_t reward_workers = 1;  // programs of a rank
  int64_t reward_retries = 0;
  int64_t reward_memory_limit = 0;  // MiB of address space of each process; 0: none
  bool scale_rewards = true;
  int64_t overlong_buffer_len = 0;  // tokens; 0: off
  double overlong_penalty_factor = 1;

  Fields fields();
  std::vector<std::string> stops() const;  // of stop_strings. Throws ConfigError.
  // The parts of `reward` with their weights. Throws ConfigError for a name that is none, or a weight that is no
  // number.
  std::vector<WeightedReward> rewards() const;
  bool rewards_by(WeightedReward::Kind kind) const;
  // Checks the keys of rewards against each other. Throws ConfigError.
  void validate_rewards() const;
  // Checks all keys, those of rewards too, against the other keys of the run. Throws ConfigError.
  void validate_within(const RunConfig& config) const;
};

// Settings of a run's reports besides metrics.jsonl. No key changes the computation.
struct LogConfig {
  std::string log_format = "witan";  // witan | megatron | nanogpt
  bool log_throughput = false;
  bool log_params_norm = false;
  bool log_num_zeros_in_grad = false;
  bool log_progress = false;
  bool log_memory_to_tensorboard = false;
  int64_t log_activations = 0;  // steps; 0: off
  bool nvtx_ranges = false;
  int64_t timing_log_level = 0;
  std::string tensorboard_dir;                              // empty: RUN/tensorboard; "none": not written
  std::string wandb_project, wandb_exp_name, wandb_entity;  // for the script that uploads the run

  Fields fields();
  bool megatron() const { return log_format == "megatron"; }
  bool nanogpt() const { return log_format == "nanogpt"; }
  // Whether log lines for other programs go to the standard output, in place of the progress line.
  bool prints_lines() const { return log_format != "witan"; }
};

// How a run resumes from a checkpoint. The keys apply to one call, and are not saved in the run's config.toml.
struct LoadConfig {
  bool no_load_optim = false;
  bool no_load_rng = false;
  bool use_checkpoint_opt_param_scheduler = false;

  Fields fields();
};

// The steps that --trace-steps selects, first and last included.
struct StepRange {
  int64_t first = 1, last = 1;
};
// Parses "3:5" or "3". Throws ConfigError.
StepRange parse_step_range(const std::string& text);

// The configuration as given; resolve() (train/config/resolve.h) completes it.
struct RunConfig {
  ModelConfig model;
  DataConfig data;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  TrainConfig train;
  ObjectiveConfig objective;
  RolloutConfig rollout;
  LogConfig log;
  LoadConfig load;

  Fields fields();
  // Checks every part and their combination; vocab_size and ranks must be resolved. Throws ConfigError.
  void validate() const;

  int64_t micro_batches() const { return train.global_batch_size / train.micro_batch_size; }  // per step, all ranks
  // The global batch size of each step. Throws ConfigError if rampup_batch_size is not a ramp to global_batch_size.
  BatchRamp batch_ramp() const;
  // The samples of all steps, or train_samples if that is more.
  int64_t samples_to_train_on() const;
  // The length of schedules: in samples with train_samples, else in iterations.
  int64_t schedule_length() const { return train.train_samples > 0 ? train.train_samples : train.train_iters; }
  // The reference of kl_loss_coef or of preferences. With `auto` it is in columns if they are read from shards, else
  // the base of adapters or, without adapters, the starting weights.
  ReferenceKind reference() const;
  // The temperature of the policy that is sampled and trained.
  double temperature() const { return objective.objective == "policy" ? rollout.rollout_temperature : 1; }
  // Whether the run generates samples, for which ranks must hold the whole model.
  bool writes_sample() const { return train.sample_tokens > 0 && parallel.model_ranks() == 1; }
  // Whether tensor-parallel exchanges overlap with computation: with tp_comm_overlap, if layers can run in lanes.
  bool overlaps_tensor_exchanges() const { return parallel.tp_comm_overlap && key_against_tensor_overlap().empty(); }
  // The first key whose value prevents layers from running in lanes; empty if none does.
  std::string_view key_against_tensor_overlap() const;
  // float64 for float64 models, else parallel.gradient_dtype for bfloat16 models, else float32.
  DType gradient_dtype() const;
};

}  // namespace witan
