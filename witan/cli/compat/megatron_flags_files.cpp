// Rows of the table: what is read, written and said, and what starts the ranks.
#include "witan/cli/compat/megatron_flags.h"
#include "witan/cli/compat/megatron_rules.h"

namespace witan::cli {

MegatronSection megatron_data_flags() {
  const std::string parts = "one dataset is divided: `--data-path` and `--split`";
  const std::string files = "give the tokenizer as a tokenizer.json: `--tokenizer FILE`";
  const std::string reading = "how files are read changes no sample";
  return {"Data and tokenizer",
          {
              ruled("--data-path", Takes::some, rules::data_path,
                    "`data_path`: one prefix, with or without a weight; a blend of several is refused"),
              refused("--train-data-path", parts, Takes::some),
              refused("--valid-data-path", parts, Takes::some),
              refused("--test-data-path", parts, Takes::some),
              refused("--data-args-path", parts, Takes::one),
              ruled("--split", Takes::one, rules::split,
                    "`held_out_fraction`: the shares of validation and test together, 969,30,1 unless given beside "
                    "`--data-path`; the documents are drawn, not the last ones taken"),
              harmless("--mock-data", "without data the default text is read"),
              ruled("--tokenizer-type", Takes::one, rules::tokenizer_type,
                    "nothing for `HuggingFaceTokenizer` and `NullTokenizer`; others are refused: " + files),
              ruled("--tokenizer-model", Takes::one, rules::tokenizer_model,
                    "`tokenizer`: a tokenizer.json, or the folder that holds it"),
              refused("--vocab-file", files, Takes::one),
              refused("--merge-file", files, Takes::one),
              refused("--tiktoken-pattern", files, Takes::one),
              refused("--tiktoken-num-special-tokens", files, Takes::one),
              refused("--tiktoken-special-tokens", files, Takes::some),
              same("--vocab-size"),
              only("--vocab-extra-ids", {"0"}, "a decoder needs no ids for masked spans"),
              same_truth("--reset-position-ids"),
              same_truth("--reset-attention-mask"),
              same_truth("--eod-mask-loss"),
              only("--dataloader-type", {"single"}, "samples are drawn epoch by epoch, and each epoch is whole"),
              harmless("--num-workers", reading, Takes::one),
              harmless("--num-dataset-builder-threads", reading, Takes::one),
              harmless("--data-cache-path", reading, Takes::one),
              harmless("--no-mmap-bin-files", reading),
              harmless("--no-create-attention-mask-in-dataloader", "masks are never stored"),
              harmless("--dataloader-fast-cache-load", reading),
              refused("--fim-data", "samples are texts as they are; leave it out"),
              refused("--renormalize-blend-weights", "there is one dataset; leave it out"),
          }};
}

MegatronSection megatron_checkpoint_flags() {
  const std::string ours = "checkpoints have Witan's own format";
  const std::string whole = "checkpoints are whole, so that a run goes on to the bit; leave it out";
  const std::string other = "a run resumes from its own folder, from its newest checkpoint; leave it out";
  return {
      "Checkpoints",
      {
          ruled("--save", Takes::one, rules::save,
                "`runs_folder` and `run`: its last part is the run's name; refused over checkpoints of Megatron-LM"),
          same("--save-interval"),
          renamed("--persistent-save-interval", "save_interval"),
          ruled("--load", Takes::one, rules::load, "nothing, where `--save` names the same folder; else refused"),
          same_truth("--no-load-optim"),
          same_truth("--no-load-rng"),
          refused("--no-save-optim", whole),
          refused("--no-save-rng", whole),
          refused("--finetune", other),
          refused("--pretrained-checkpoint", other, Takes::one),
          refused("--ckpt-step", other, Takes::one),
          refused("--exit-on-missing-checkpoint", other),
          harmless("--use-checkpoint-args", "a run's own configuration is always read"),
          harmless("--no-initialization", "what is loaded replaces initial weights"),
          harmless("--ckpt-format", ours, Takes::one),
          harmless("--dist-ckpt-format", ours, Takes::one),
          harmless("--use-dist-ckpt", ours),
          harmless("--auto-detect-ckpt-format", ours),
          harmless("--ckpt-fully-parallel-save", ours),
          harmless("--no-ckpt-fully-parallel-save", ours),
          harmless("--ckpt-fully-parallel-load", ours),
          harmless("--ckpt-assume-constant-structure", ours),
          harmless("--dist-ckpt-strictness", ours, Takes::one),
          harmless("--async-save", "how a checkpoint is written changes nothing in it"),
          harmless("--non-persistent-save-interval", "`--save-interval` is what is kept", Takes::one),
          harmless("--non-persistent-ckpt-type", "`--save-interval` is what is kept", Takes::one),
          refused("--ckpt-convert-format", "checkpoints are not converted; leave it out", Takes::one),
          refused("--ckpt-convert-save", "checkpoints are not converted; leave it out", Takes::one),
      }};
}

MegatronSection megatron_logging_flags() {
  const std::string wandb = "Weights & Biases reads the folder of `--tensorboard-dir` itself";
  const std::string boards = "TensorBoard's files hold all series";
  const std::string profiler = "there is no profiler in it";
  const std::string watcher = "there is no such watcher";
  return {"Logging",
          {
              same("--log-interval"),
              same_truth("--log-throughput"),
              same_truth("--log-params-norm"),
              same_truth("--log-num-zeros-in-grad"),
              same_truth("--log-progress"),
              same("--timing-log-level"),
              only("--timing-log-option", {"minmax"}, "times are the least and the most over all ranks"),
              harmless("--no-barrier-with-level-1-timing", "measuring needs no barrier"),
              harmless("--logging-level", "what is said does not change what is done", Takes::one),
              same("--tensorboard-dir"),
              harmless("--tensorboard-log-interval", boards, Takes::one),
              harmless("--tensorboard-queue-size", boards, Takes::one),
              harmless("--log-timers-to-tensorboard", boards),
              harmless("--no-log-loss-scale-to-tensorboard", boards),
              harmless("--log-validation-ppl-to-tensorboard", boards),
              harmless("--log-memory-to-tensorboard", boards),
              harmless("--log-world-size-to-tensorboard", boards),
              harmless("--wandb-project", wandb, Takes::one),
              harmless("--wandb-exp-name", wandb, Takes::one),
              harmless("--wandb-save-dir", wandb, Takes::one),
              harmless("--wandb-entity", wandb, Takes::one),
              harmless("--profile", profiler),
              harmless("--profile-step-start", profiler, Takes::one),
              harmless("--profile-step-end", profiler, Takes::one),
              harmless("--profile-ranks", profiler, Takes::some),
              harmless("--use-pytorch-profiler", profiler),
              harmless("--record-memory-history", profiler),
              harmless("--memory-snapshot-path", profiler, Takes::one),
              harmless("--log-straggler", watcher),
              harmless("--disable-straggler-on-startup", watcher),
              harmless("--no-one-logger", watcher),
              harmless("--one-logger-project", watcher, Takes::one),
              harmless("--one-logger-run-name", watcher, Takes::one),
              harmless("--enable-ft-package", watcher),
              harmless("--adlr-autoresume", "a signal saves and ends the run"),
              harmless("--adlr-autoresume-interval", "a signal saves and ends the run", Takes::one),
          }};
}

MegatronSection megatron_launcher_flags() {
  const std::string threads =
      "this program starts the ranks, as threads of one process; torchrun itself starts processes";
  return {"torchrun",
          {
              renamed("--nproc-per-node", "ranks"),
              only("--nnodes", {"1"}, "ranks on several hosts are processes, which torchrun itself starts"),
              only("--node-rank", {"0"}, "ranks on several hosts are processes, which torchrun itself starts"),
              harmless("--master-addr", threads, Takes::one),
              harmless("--master-port", threads, Takes::one),
              harmless("--rdzv-backend", threads, Takes::one),
              harmless("--rdzv-endpoint", threads, Takes::one),
              harmless("--rdzv-id", threads, Takes::one),
          }};
}

}  // namespace witan::cli
