// The keys of training, of logs and of loading, with their help and bounds.
#include <charconv>
#include <string_view>

#include "witan/base/error.h"
#include "witan/train/config/config.h"

namespace witan {
namespace {

int64_t step_number(std::string_view text, const std::string& whole) {
  int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  require<ConfigError>(read.ec == std::errc() && read.ptr == text.data() + text.size() && value >= 1, "--trace-steps ",
                       whole, ": give the first and the last step, as 3:5, or one, as 3");
  return value;
}

}  // namespace

Fields TrainConfig::fields() {
  return {
      Field{"run", &run, "Name of the run, and of its folder in runs_folder"},
      Field{"runs_folder", &runs_folder, "Folder of all runs"},
      Field{"train_iters", &train_iters, "Number of optimizer steps"}.between(1, 1e12),
      Field{"train_samples", &train_samples,
            "Train on N sequences instead of for train_iters steps; schedules then count samples (lr_decay_samples) "
            "(0: train_iters)"}
          .between(0, 1e15),
      Field{"micro_batch_size", &micro_batch_size, "Sequences per micro-batch and data-parallel rank"}.between(1,
                                                                                                               1 << 20),
      Field{"global_batch_size", &global_batch_size, "Sequences per optimizer step, over all ranks"}.between(1,
                                                                                                             1 << 24),
      Field{"rampup_batch_size", &rampup_batch_size,
            "START,INCREMENT,SAMPLES: begin with a global batch of START sequences and increase it by INCREMENT at a "
            "time to global_batch_size over SAMPLES samples; empty: constant"},
      Field{"decrease_batch_size_if_needed", &decrease_batch_size_if_needed,
            "Round the batch sizes of rampup_batch_size down to multiples of micro_batch_size times the data-parallel "
            "ranks, instead of refusing them"},
      Field{"seed", &seed, "Random seed of weight initialisation and data order"}.at_least(0),
      Field{"eval_interval", &eval_interval, "Evaluate every N steps (0: only at the end)"}.at_least(0),
      Field{"eval_iters", &eval_iters, "Maximum number of global batches per evaluation (0: no evaluations)"}.at_least(
          0),
      Field{"full_validation", &full_validation,
            "Evaluate on every sample of the validation split and of valid_data once, regardless of eval_iters"},
      Field{"log_interval", &log_interval,
            "Write a line of metrics.jsonl every N steps and, if N > 1 and the output is not a terminal, a progress "
            "line (if N = 1, every 30 s)"}
          .at_least(1),
      Field{"save_interval", &save_interval, "Save a checkpoint every N steps (0: only at the end)"}.at_least(0),
      Field{"exit_interval", &exit_interval,
            "Save and exit with code 75, to be resumed later, at every multiple of N steps (0: never)"}
          .at_least(0),
      Field{"exit_duration_in_mins", &exit_duration_in_mins,
            "Save and exit with code 75 after the first step at which the process is N minutes old (0: never)"}
          .at_least(0),
      Field{"keep_last", &keep_last, "Number of checkpoints to keep"}.at_least(1),
      Field{"keep_best", &keep_best,
            "Also keep the N checkpoints with the lowest validation loss; every checkpoint is then evaluated before it "
            "is saved"}
          .at_least(0),
      Field{"early_stopping_patience", &early_stopping_patience,
            "Stop after N evaluations in a row without a lower validation loss (0: never)"}
          .at_least(0),
      Field{"check_states", &check_states,
            "Verify after every step that data-parallel ranks hold the same values, and each rank its own experts"},
      Field{"check_states_interval", &check_states_interval,
            "Compare hashes of values and optimizer state among data-parallel ranks every N steps and before "
            "each checkpoint (0: never)"}
          .at_least(0),
      Field{"check_messages", &check_messages,
            "Send a checksum with every message between CPU ranks, and verify it on arrival"},
      Field{
          "replay_interval", &replay_interval,
          "Every N steps, compute each data-parallel rank's micro-batches on another rank too, and compare losses and "
          "gradients to the bit before they are used (0: never)"}
          .at_least(0),
      Field{"most_skipped", &most_skipped, "Consecutive skipped steps after which the run stops"}.at_least(1),
      Field{"on_nan", &on_nan,
            "Action after a step with non-finite gradients, whose update is always left out: skip continues, rewind "
            "returns to the last checkpoint and leaves out the samples read since, stop ends the run"}
          .one_of({"skip", "rewind", "stop"}),
      Field{"on_spike", &on_spike, "Action after a loss spike (see skip_step_sigma)"}.one_of(
          {"skip", "rewind", "stop"}),
      Field{"max_rewinds", &max_rewinds, "Maximum number of rewinds in a run; instead of another one, the run ends"}
          .at_least(1),
      Field{"keep_anomalies", &keep_anomalies,
            "Write the batch and the weights of the first N steps with non-finite gradients or a loss spike to "
            "RUN/anomalies, for `witan replay` (0: none)"}
          .at_least(0),
      Field{"straggler_threshold", &straggler_threshold,
            "Warn of a rank whose compute time per step exceeds this multiple of the median over all ranks (0: never)"}
          .at_least(0),
      Field{"sample_prompt", &sample_prompt,
            "Prompt of the sample at the end of the run; with sft, the user's message"},
      Field{"sample_tokens", &sample_tokens, "Tokens per sample (0: no samples); needs ranks that hold the whole model"}
          .at_least(0),
      Field{"sample_temperature", &sample_temperature, "Sampling temperature of samples (0: greedy)"}.at_least(0),
      Field{
          "sample_interval", &sample_interval,
          "Generate samples every N steps, for the report and RUN/samples.jsonl; training pauses meanwhile (0: only at "
          "the end)"}
          .at_least(0),
      Field{"sample_prompts", &sample_prompts,
            "File with the prompts of sample_interval: one per line, or the \"prompt\" of each line of a .jsonl file; "
            "empty: sample_prompt"},
      Field{"record_routes", &record_routes,
            "Folder in which to record the experts of every token, step by step; empty: do not record"},
      Field{"replay_routes", &replay_routes,
            "Folder of recorded routes: tokens go to these experts instead of the router's choice; empty: none"},
      Field{"upcycle", &upcycle,
            "Start a new MoE run from a trained dense model, with its configuration and tokenizer: the name or folder "
            "of its run, or a checkpoint's folder; empty: random weights"},
      Field{"upcycle_method", &upcycle_method,
            "How experts are made from the dense MLP: as copies, as slices, or as copies with some hidden units drawn "
            "anew"}
          .one_of({"copied", "granular", "drop"}),
      Field{"upcycle_noise", &upcycle_noise,
            "Standard deviation of the noise added to upcycled experts, relative to that of the dense matrix"}
          .at_least(0),
      Field{"upcycle_drop_ratio", &upcycle_drop_ratio,
            "Share of each expert's hidden units that upcycle_method = drop draws anew"}
          .between(0, 1),
      Field{"init_from", &init_from,
            "Start a new run from a model's weights, with its configuration: a Hugging Face folder, PEFT's folder of "
            "LoRA adapters, a GGUF file, a Megatron-LM checkpoint, the name or folder of a run, or a checkpoint's "
            "folder; empty: random weights"},
      Field{"init_base", &init_base,
            "Base model of the adapters in init_from, as init_from names models; empty: the one that their "
            "adapter_config.json names"},
      Field{"init_state", &init_state,
            "Take only the weights of init_from and begin at step 0, or continue its training from its step, with its "
            "optimizer state, data position and configuration"}
          .one_of({"weights", "training"}),
  };
}

bool TrainConfig::closes_interval(int64_t step) const {
  const bool may_stop_early = early_stopping_patience > 0 && eval_interval > 0 && step % eval_interval == 0;
  return step % log_interval == 0 || step == train_iters || (save_interval > 0 && step % save_interval == 0) ||
         may_stop_early;
}

Fields LogConfig::fields() {
  return {
      Field{"log_format", &log_format,
            "Progress line and train.log, or Megatron-LM's or modded-nanogpt's log lines on standard output"}
          .one_of({"witan", "megatron", "nanogpt"}),
      Field{"log_throughput", &log_throughput, "Log TFLOP/s by Megatron-LM's formula"},
      Field{"log_params_norm", &log_params_norm,
            "Log the L2 norm of all parameters (frozen matrices that are kept as codes left out)"},
      Field{"log_num_zeros_in_grad", &log_num_zeros_in_grad, "Log the number of gradients that are exactly 0"},
      Field{"log_progress", &log_progress, "Write progress.txt: tokens and FLOPs at every start and checkpoint"},
      Field{"log_memory_to_tensorboard", &log_memory_to_tensorboard,
            "Write the memory of rank 0's arena to TensorBoard with each step's values"},
      Field{"log_activations", &log_activations,
            "Measure the activations of every layer every N steps: RMS, largest magnitude, zeros (0: never)"}
          .at_least(0),
      Field{"nvtx_ranges", &nvtx_ranges,
            "Emit NVTX ranges for steps, passes and modules, for Nsight Systems (steps on GPUs need --no-cuda-graph)"},
      Field{"timing_log_level", &timing_log_level,
            "Timers in Megatron-LM's log format: 0: setup only; 1: also parts of a step; 2: also each micro-batch"}
          .between(0, 2),
      Field{"tensorboard_dir", &tensorboard_dir,
            "Folder of TensorBoard's event files; empty: RUN/tensorboard; none: do not write them"},
      Field{"wandb_project", &wandb_project,
            "Weights & Biases project to which a script uploads the run (docs/formats/tensorboard.md)"},
      Field{"wandb_exp_name", &wandb_exp_name, "Name of the run in Weights & Biases; empty: the run's name"},
      Field{"wandb_entity", &wandb_entity, "Weights & Biases user or team; empty: your own"},
  };
}

Fields LoadConfig::fields() {
  return {
      Field{"no_load_optim", &no_load_optim,
            "Resume with the checkpoint's weights only; the optimizer starts with a fresh state"},
      Field{"no_load_rng", &no_load_rng,
            "Accepted for Megatron-LM's flag; has no effect, since random numbers have no state to restore"},
      Field{"use_checkpoint_opt_param_scheduler", &use_checkpoint_opt_param_scheduler,
            "Use the checkpoint's schedules of learning rate and weight decay instead of those given"},
  };
}

StepRange parse_step_range(const std::string& text) {
  const std::string_view all = text;
  const size_t colon = all.find(':');
  if (colon == std::string_view::npos) return {step_number(all, text), step_number(all, text)};
  const StepRange range{step_number(all.substr(0, colon), text), step_number(all.substr(colon + 1), text)};
  require<ConfigError>(range.first <= range.last, "--trace-steps ", text, ": the first step comes after the last; ",
                       "give ", range.last, ":", range.first);
  return range;
}

}  // namespace witan
