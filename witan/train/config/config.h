// The configuration of a run: those of its components, and its own keys.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/data/batches/batch_ramp.h"
#include "witan/data/datasets/split.h"
#include "witan/model/config.h"
#include "witan/optim/config.h"
#include "witan/parallel/config.h"
#include "witan/tokenizer/training/bpe_trainer.h"

namespace witan {

// What is read, and how it becomes samples.
struct DataConfig {
  std::string data;             // files and folders, separated by commas (paths_of()); empty: the perl-doc package
  std::string data_path;        // prefix of prepared token shards, instead of `data`
  std::string data_weights;     // of the datasets of data_path, with commas between them; empty: as they are
  double data_temperature = 1;  // weights are raised to 1 / data_temperature
  double data_max_epochs = 0;   // no source is repeated more often; 0: any number of times
  std::string data_schedule;    // other weights from a step on: STEP=W1,W2;STEP=…
  std::string data_samples = "witan";  // whose order of samples: witan | megatron
  std::string data_packing = "none";   // none | best_fit; of text in Witan's order
  std::string split = "969,30,1";      // of data_samples = "megatron": train, validation and test
  std::string train_data_path, valid_data_path, test_data_path;  // likewise: each split from paths of its own
  std::string data_cache_path;  // likewise: where indices are kept; empty: beside the data
  std::string tokenizer;        // a tokenizer.json; empty: one is trained on the data
  std::string json_key = "text";
  std::string valid_data;  // sets of one's own to evaluate on: NAME=FILE, with commas between them
  bool sft = false;        // the data are conversations, in the messages format
  std::string messages_key = "messages";
  std::string chat_template;            // a file; empty: the tokenizer's own
  std::string loss_on = "answers";      // of sft: answers | all
  bool content_special_tokens = false;  // of sft: special tokens that messages spell are recognised
  std::string packing = "greedy";       // of sft
  double held_out_fraction = kHeldOutFraction;
  double bad_row_share = 0.1;
  bool replace_invalid_utf8 = false;
  int64_t seq_length = 256;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  BpeTrainerConfig bpe;

  // Whether tokens are read as they were prepared, by data_path or those of the splits; else text is.
  bool reads_shards() const { return !data_path.empty() || !train_data_path.empty(); }
  // Whether it says how datasets are mixed.
  bool is_weighted() const {
    return !data_weights.empty() || !data_schedule.empty() || data_temperature != 1 || data_max_epochs > 0;
  }
  bool megatron_samples() const { return data_samples == "megatron"; }
  // Whether samples hold documents, or pieces of them, that are kept apart from each other.
  bool packs() const { return sft || data_packing != "none"; }

  Fields fields();
  void validate() const;  // throws ConfigError

 private:
  void validate_megatron() const;
};

// The set that data_samples = "megatron" adds: its test split.
inline constexpr const char* kTestSet = "test";

// "NAME=FILE" pairs with commas between them; a file with a comma in its name cannot be given. Throws ConfigError for
// what is no such list, and for names that are there twice or are not letters, digits, _ and -.
std::vector<std::pair<std::string, std::string>> parse_validation_sets(const std::string& valid_data);

// How long, how much at once, and what is written on the way.
struct TrainConfig {
  std::string run = "default";
  std::string runs_folder = "runs";
  int64_t train_iters = 1000;
  int64_t train_samples = 0;  // 0: train_iters says how long; above 0: resolve() counts the iterations
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
  int64_t exit_interval = 0;         // steps; 0: a start goes on to the last one
  double exit_duration_in_mins = 0;  // likewise, of the process
  int64_t keep_last = 2;
  int64_t keep_best = 0;                // checkpoints of lowest validation loss that are kept besides
  int64_t early_stopping_patience = 0;  // evaluations; 0: the run goes on to its last step
  bool check_states = false;
  int64_t check_states_interval = 0;  // steps; 0: off
  bool check_messages = false;
  int64_t replay_interval = 0;  // steps; 0: off
  int64_t most_skipped = 10;
  std::string on_nan = "skip", on_spike = "skip";  // skip | rewind | stop: what becomes of such a step (anomaly.h)
  int64_t max_rewinds = 10;
  int64_t keep_anomalies = 2;        // folders of them
  double straggler_threshold = 1.2;  // over the median of the ranks; 0: off
  std::string sample_prompt = "The ";
  int64_t sample_tokens = 120;
  double sample_temperature = 0.7;
  int64_t sample_interval = 0;  // steps; 0: a sample at the end alone
  std::string sample_prompts;   // a file; empty: sample_prompt
  std::string record_routes;    // a folder; empty: routes are not recorded
  std::string replay_routes;    // likewise: what --record-routes wrote
  std::string upcycle;          // a dense checkpoint that a new run starts from; empty: random weights
  std::string upcycle_method = "copied";
  double upcycle_noise = 0;            // relative to the standard deviation of a dense matrix
  double upcycle_drop_ratio = 0.5;     // of upcycle_method = "drop"
  std::string init_from;               // a run or a Hugging Face folder whose weights a new run starts from
  std::string init_state = "weights";  // weights | training: what of a run init_from takes

  Fields fields();
  // Whether a new run goes on where another one was, instead of beginning at its weights.
  bool branches() const { return init_state == "training"; }
  // Whether a step may be followed by an older checkpoint (on_nan, on_spike).
  bool rewinds() const { return on_nan == "rewind" || on_spike == "rewind"; }
  // Whether a line of metrics is due after `step`. A checkpoint ends an interval too: a run that resumes from it has no
  // sums to bring along.
  bool closes_interval(int64_t step) const;
};

// What a run tells of itself beside metrics.jsonl. None of it changes what is computed.
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
  std::string wandb_project, wandb_exp_name, wandb_entity;  // for who uploads the run; empty: not said

  Fields fields();
  bool megatron() const { return log_format == "megatron"; }
  bool nanogpt() const { return log_format == "nanogpt"; }
  // Whether lines for programs take the standard output, and the place of the progress line.
  bool prints_lines() const { return log_format != "witan"; }
};

// How a run resumes from a checkpoint. Said for one call: a run's config.toml does not remember it.
struct LoadConfig {
  bool no_load_optim = false;
  bool no_load_rng = false;
  bool use_checkpoint_opt_param_scheduler = false;

  Fields fields();
};

// Consecutive steps of a run, as --trace-steps names them.
struct StepRange {
  int64_t first = 1, last = 1;
};
// "3:5", both included, or "3". Throws ConfigError.
StepRange parse_step_range(const std::string& text);

struct RunConfig {  // as given; train/config/resolve.h makes of it the configuration that a run has
  ModelConfig model;
  DataConfig data;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  TrainConfig train;
  LogConfig log;
  LoadConfig load;

  Fields fields();
  // Checks every part and how they fit together; vocab_size and ranks must be resolved. Throws ConfigError.
  void validate() const;

  int64_t micro_batches() const { return train.global_batch_size / train.micro_batch_size; }  // per step, all ranks
  // The sizes of steps. Throws ConfigError where rampup_batch_size is not a ramp up to global_batch_size.
  BatchRamp batch_ramp() const;
  // Samples of all steps, or train_samples if that is more.
  int64_t samples_to_train_on() const;
  // The end of schedules, in what they count: samples with train_samples, else iterations.
  int64_t schedule_length() const { return train.train_samples > 0 ? train.train_samples : train.train_iters; }
  // Whether the run generates samples: that takes ranks that hold the whole model.
  bool writes_sample() const { return train.sample_tokens > 0 && parallel.model_ranks() == 1; }
  // Whether tensor-parallel ranks exchange tokens beside computation: tp_comm_overlap, where layers can be lanes'.
  bool overlaps_tensor_exchanges() const { return parallel.tp_comm_overlap && key_against_tensor_overlap().empty(); }
  // The first key whose value keeps layers from being lanes'; empty: none does.
  std::string_view key_against_tensor_overlap() const;
  // float64 for float64 models, else what parallel.gradient_dtype says.
  DType gradient_dtype() const;
};

}  // namespace witan
