// Rows of the table: input, output, logging, and launching ranks.
#include "witan/cli/compat/megatron_flags.h"
#include "witan/cli/compat/megatron_rules.h"

namespace witan::cli {

MegatronSection megatron_data_flags() {
  const std::string files =
      "give the tokenizer as one file of any kind that Witan reads, such as a tokenizer.json: `--tokenizer FILE`";
  const std::string reading = "how files are read does not change the samples";
  return {
      "Data and tokenizer",
      {
          ruled("--data-path", Takes::some, rules::data_path,
                "`data_path`: prefixes, or weights and prefixes by turns; samples are Megatron-Core's to the index "
                "(`data_samples`)"),
          ruled("--train-data-path", Takes::some, rules::train_data_path, "`train_data_path`, as `--data-path`"),
          ruled("--valid-data-path", Takes::some, rules::valid_data_path, "`valid_data_path`, as `--data-path`"),
          ruled("--test-data-path", Takes::some, rules::test_data_path,
                "`test_data_path`, as `--data-path`; evaluated after the last step"),
          ruled("--data-args-path", Takes::one, rules::data_args_path,
                "`data_path`: the words of the file, read when the command starts"),
          ruled("--per-split-data-args-path", Takes::one, rules::per_split_data_args_path,
                "`train_data_path`, `valid_data_path`, `test_data_path`: the lists of the JSON file"),
          ruled("--split", Takes::one, rules::split,
                "`split`; and `held_out_fraction`, which `--data-samples witan` uses: the shares of validation and "
                "test together, of documents drawn at random"),
          harmless("--mock-data", "without data the default text is read"),
          ruled("--tokenizer-type", Takes::one, rules::tokenizer_type,
                "nothing for `HuggingFaceTokenizer`, `SentencePieceTokenizer`, `GPTSentencePieceTokenizer`, "
                "`Llama2Tokenizer`, `NullTokenizer` and, with `--vocab-file` and `--merge-file`, `GPT2BPETokenizer`; "
                "others are refused: " +
                    files),
          ruled("--tokenizer-model", Takes::one, rules::tokenizer_model,
                "`tokenizer`: a file of any kind, or the folder that contains it; refused beside `--tokenizer`"),
          ruled("--vocab-file", Takes::one, rules::vocab_file,
                "`tokenizer`, together with `--merge-file`; refused beside `--tokenizer` and `--tokenizer-model`"),
          ruled("--merge-file", Takes::one, rules::merge_file, "the merges of `--vocab-file`"),
          refused("--tiktoken-pattern", files, Takes::one),
          refused("--tiktoken-num-special-tokens", files, Takes::one),
          refused("--tiktoken-special-tokens", files, Takes::some),
          same("--vocab-size"),
          only("--vocab-extra-ids", {"0"}, "a decoder needs no ids for masked spans"),
          same_truth("--reset-position-ids"),
          same_truth("--reset-attention-mask"),
          same_truth("--eod-mask-loss"),
          same_truth("--sft"),
          refused("--sft-tokenizer-prompt-format",
                  "conversations are written by the model's own chat template, or "
                  "another one: `--chat-template FILE`",
                  Takes::one),
          only("--dataloader-type", {"single"}, "samples are read in order, each once"),
          harmless("--num-workers", reading, Takes::one),
          harmless("--num-dataset-builder-threads", reading, Takes::one),
          same("--data-cache-path"),
          harmless("--no-mmap-bin-files", reading),
          harmless("--no-create-attention-mask-in-dataloader", "masks are never materialised"),
          harmless("--dataloader-fast-cache-load", reading),
          refused("--fim-data",
                  "samples are the text itself: rearrange its documents for filling in the middle before "
                  "`witan data prepare`"),
          same_truth("--full-validation"),
          refused("--multiple-validation-sets", "give each set a name: `--valid-data NAME=FILE,NAME=FILE`"),
          refused("--renormalize-blend-weights",
                  "a blend's weights are those given: give renormalized ones to `--data-path`"),
      }};
}

MegatronSection megatron_checkpoint_flags() {
  const std::string ours = "checkpoints are in Witan's own format";
  const std::string whole = "checkpoints are always complete, so that a run resumes bit for bit";
  const std::string convert =
      "checkpoints are converted by commands of their own: `witan import FOLDER`, `witan export --format megatron "
      "FOLDER`";
  return {
      "Checkpoints",
      {
          ruled("--save", Takes::one, rules::save,
                "`runs_folder` and `run`: the last part of the path is the run's name; refused if it holds checkpoints "
                "of Megatron-LM"),
          same("--save-interval"),
          renamed("--persistent-save-interval", "save_interval"),
          ruled("--load", Takes::one, rules::load,
                "no effect if `--save` names the same folder; else `init_from`: with `--finetune` its weights, without "
                "it the training of a run of Witan (`init_state = training`). Megatron-LM's release checkpoints, which "
                "have no step, give their weights without the flag too. A run that `--save` has begun resumes"),
          ruled("--no-load-optim", Takes::nothing, rules::no_load_optim,
                "`no_load_optim = true`; no effect where weights alone are taken"),
          same_truth("--no-load-rng"),
          harmless("--no-save-optim", whole),
          harmless("--no-save-rng", whole),
          ruled("--finetune", Takes::nothing, rules::finetune,
                "with `--load`, `init_from`: training begins at step 0 with the weights; refused where `--save` names "
                "the same folder, and it has checkpoints, and without `--load` and `--pretrained-checkpoint`"),
          ruled("--pretrained-checkpoint", Takes::one, rules::pretrained_checkpoint,
                "`init_from`, where `--load` has no checkpoint"),
          ruled("--ckpt-step", Takes::one, rules::ckpt_step, "the step of the checkpoint that `--load` names"),
          harmless("--exit-on-missing-checkpoint", "`--load` without a checkpoint is refused"),
          harmless("--use-checkpoint-args", "the run's own configuration is always read"),
          harmless("--no-initialization", "the loaded weights replace the initial ones"),
          harmless("--ckpt-format", ours, Takes::one),
          harmless("--dist-ckpt-format", ours, Takes::one),
          harmless("--use-dist-ckpt", ours),
          harmless("--auto-detect-ckpt-format", ours),
          harmless("--ckpt-fully-parallel-save", ours),
          harmless("--no-ckpt-fully-parallel-save", ours),
          harmless("--ckpt-fully-parallel-load", ours),
          harmless("--ckpt-assume-constant-structure", ours),
          harmless("--dist-ckpt-strictness", ours, Takes::one),
          harmless("--async-save", "how a checkpoint is written does not change its contents"),
          harmless("--non-persistent-save-interval", "only checkpoints of `--save-interval` are written", Takes::one),
          harmless("--non-persistent-ckpt-type", "only checkpoints of `--save-interval` are written", Takes::one),
          refused("--ckpt-convert-format", convert, Takes::one),
          refused("--ckpt-convert-save", convert, Takes::one),
      }};
}

MegatronSection megatron_logging_flags() {
  const std::string uploaded = "read by the script of docs/formats/tensorboard.md, which uploads a run";
  const std::string local = "a run uploads nothing, and has its files in its own folder";
  const std::string boards = "TensorBoard's files contain it";
  const std::string steps = "TensorBoard's files have the steps of `--log-interval`";
  const std::string timers =
      "TensorBoard's files contain `iteration-time` and `data-wait-time`, and with `log_format = megatron` and "
      "`--timing-log-level` the parts of a step";
  const std::string traced = "of `--profile`, which traces every rank, on CPUs and GPUs";
  const std::string memory = "what is live when memory runs out is written in every run";
  const std::string watcher = "there is no such monitoring";
  return {
      "Logging",
      {
          same("--log-interval"),
          same_truth("--log-throughput"),
          same_truth("--log-params-norm"),
          same_truth("--log-num-zeros-in-grad"),
          same_truth("--log-progress"),
          same("--timing-log-level"),
          only("--timing-log-option", {"minmax"}, "times are the minimum and maximum over all ranks"),
          harmless("--no-barrier-with-level-1-timing", "timing needs no barrier"),
          harmless("--logging-level", "logging does not change the training", Takes::one),
          same("--tensorboard-dir"),
          harmless("--tensorboard-log-interval", steps, Takes::one),
          harmless("--tensorboard-queue-size", "values are written at once", Takes::one),
          harmless("--log-timers-to-tensorboard", timers),
          harmless("--no-log-loss-scale-to-tensorboard", boards),
          harmless("--log-validation-ppl-to-tensorboard", boards),
          same_truth("--log-memory-to-tensorboard"),
          harmless("--log-world-size-to-tensorboard", boards),
          renamed("--wandb-project", "wandb_project", uploaded),
          renamed("--wandb-exp-name", "wandb_exp_name", uploaded),
          renamed("--wandb-entity", "wandb_entity", uploaded),
          harmless("--wandb-save-dir", local, Takes::one),
          ruled("--profile", Takes::nothing, rules::profile,
                "`--trace-steps`, of the steps after `--profile-step-start` (10) up to `--profile-step-end` (12), as "
                "far as a call comes to them"),
          harmless("--profile-step-start", traced, Takes::one),
          harmless("--profile-step-end", traced, Takes::one),
          harmless("--profile-ranks", traced, Takes::some),
          harmless("--use-pytorch-profiler", traced),
          harmless("--record-memory-history", memory),
          harmless("--memory-snapshot-path", memory, Takes::one),
          same_truth("--nvtx-ranges"),
          harmless("--log-straggler", "`straggler_threshold` looks for stragglers in every run"),
          harmless("--disable-straggler-on-startup", watcher),
          harmless("--no-one-logger", watcher),
          harmless("--one-logger-project", watcher, Takes::one),
          harmless("--one-logger-run-name", watcher, Takes::one),
          harmless("--enable-ft-package", watcher),
          harmless("--inprocess-restart", "`witan run` starts ranks that are lost again, each a process"),
          harmless("--rerun-mode", "`replay_interval` computes steps again on other ranks and compares them",
                   Takes::one),
          harmless("--adlr-autoresume", "a signal saves the run and exits"),
          harmless("--adlr-autoresume-interval", "a signal saves the run and exits", Takes::one),
      }};
}

MegatronSection megatron_launcher_flags() {
  const std::string threads =
      "this program starts the ranks as threads of one process; use torchrun itself to start processes";
  return {"torchrun",
          {
              renamed("--nproc-per-node", "ranks"),
              only("--nnodes", {"1"}, "ranks on several hosts are processes: start them with torchrun itself"),
              only("--node-rank", {"0"}, "ranks on several hosts are processes: start them with torchrun itself"),
              harmless("--master-addr", threads, Takes::one),
              harmless("--master-port", threads, Takes::one),
              harmless("--rdzv-backend", threads, Takes::one),
              harmless("--rdzv-endpoint", threads, Takes::one),
              harmless("--rdzv-id", threads, Takes::one),
          }};
}

}  // namespace witan::cli
