// Rows of the table: the run, its learning rate, its precision, its ranks and its kernels.
#include "witan/cli/compat/megatron_flags.h"
#include "witan/cli/compat/megatron_rules.h"

namespace witan::cli {

MegatronSection megatron_training_flags() {
  const std::string whole = "blocks are recomputed one by one: `--recompute-granularity full` alone";
  const std::string gone = "deprecated by Megatron-LM: ";
  const std::string offloading =
      "only the inputs of recomputed blocks move to the host: use `--recompute-granularity full` with "
      "`offload_activations`";
  const std::string spikes =
      "`skip_step_sigma = 6`: losses and gradient norms are compared with the last steps', and spikes are skipped, or "
      "what `on_spike` says";
  return {
      "Training",
      {
          same("--micro-batch-size"),
          same("--global-batch-size"),
          refused("--batch-size", gone + "use `--micro-batch-size` or `--global-batch-size`", Takes::one),
          ruled("--rampup-batch-size", Takes::some, rules::rampup_batch_size,
                "`rampup_batch_size`; needs `--train-samples`, as in Megatron-LM"),
          refused("--step-batch-size-schedule",
                  "the batch size grows by equal increments alone: use `--rampup-batch-size`, or train each size as a "
                  "run of its own, which `--init-from` starts from the weights of the last one",
                  Takes::some),
          ruled("--decrease-batch-size-if-needed", Takes::nothing, rules::decrease_batch_size,
                "`decrease_batch_size_if_needed`; refused without `--rampup-batch-size`: a `--global-batch-size` must "
                "be divisible by `--micro-batch-size` times the data-parallel ranks"),
          same("--train-iters"),
          ruled("--train-samples", Takes::one, rules::train_samples,
                "`train_iters`: divided by `global_batch_size`; `train_samples` beside `--rampup-batch-size`"),
          same("--seq-length"),
          refused("--encoder-seq-length", "use `--seq-length`", Takes::one),
          refused("--decoder-seq-length", "use `--seq-length`", Takes::one),
          same("--exit-interval"),
          same("--exit-duration-in-mins"),
          harmless("--exit-signal-handler", "SIGTERM always saves the run and exits"),
          harmless("--calculate-per-token-loss", "losses are means over all tokens of the global batch"),
          harmless("--no-check-for-nan-in-loss-and-grad", "such steps update nothing; `on_nan` says what follows"),
          ruled("--check-for-spiky-loss", Takes::nothing, rules::check_for_spikes, spikes),
          ruled("--check-for-large-grads", Takes::nothing, rules::check_for_spikes, spikes),
          same("--recompute-granularity"),
          sets("--recompute-activations", "recompute_granularity", "selective"),
          ruled("--recompute-method", Takes::one, rules::recompute_method,
                "no effect for `uniform` with one layer, which is what `full` does; others are refused"),
          only("--recompute-num-layers", {"1"}, "blocks are recomputed one by one"),
          ruled(
              "--recompute-modules", Takes::some, rules::recompute_modules,
              "`recompute_modules`: `layernorm`, `moe_act`, `shared_experts`, `mlp`, `moe`, `mla_up_proj`; `core_attn` "
              "has no effect, since attention never stores its scores; others are refused"),
          refused("--checkpoint-activations", gone + "use `--recompute-granularity`"),
          refused("--distribute-saved-activations", "use `--sequence-parallel`, which shards them"),
          refused("--fine-grained-activation-offloading", offloading),
          refused("--offload-modules", offloading, Takes::some),
          refused("--cpu-offloading-num-layers", offloading, Takes::one),
          sets("--deterministic-mode", "deterministic", "true"),
          sets("--batch-invariant-mode", "batch_invariant_mode", "true"),
          same("--eval-interval"),
          same("--eval-iters"),
          refused("--skip-train", "use `witan eval`"),
          refused("--test-mode", "there is no such mode; leave it out"),
          refused("--freeze-all-layers",
                  "name the parameters that are not trained: `--freeze PATTERNS`, globs on their names or kinds"),
      }};
}

MegatronSection megatron_learning_rate_flags() {
  return {
      "Learning rate",
      {
          same("--lr"),
          same("--min-lr"),
          same("--lr-decay-style"),
          same("--lr-decay-iters"),
          ruled("--lr-decay-samples", Takes::one, rules::lr_decay_samples,
                "`lr_decay_iters`: divided by `global_batch_size`; refused with a remainder. `lr_decay_samples` beside "
                "`--rampup-batch-size`"),
          same("--lr-warmup-iters"),
          ruled(
              "--lr-warmup-samples", Takes::one, rules::lr_warmup_samples,
              "`lr_warmup_iters`: divided by `global_batch_size`; refused with a remainder. `lr_warmup_samples` beside "
              "`--rampup-batch-size`"),
          ruled("--lr-warmup-fraction", Takes::one, rules::lr_warmup_fraction,
                "`lr_warmup_iters`: this fraction of `lr_decay_iters`; refused if it is not a whole number. Of samples "
                "beside `--rampup-batch-size`"),
          refused("--warmup", "deprecated by Megatron-LM: use `--lr-warmup-fraction`", Takes::one),
          same("--lr-warmup-init"),
          same("--lr-wsd-decay-style"),
          same("--lr-wsd-decay-iters"),
          ruled("--lr-wsd-decay-samples", Takes::one, rules::lr_wsd_decay_samples,
                "`lr_wsd_decay_iters`: divided by `global_batch_size`; refused with a remainder. "
                "`lr_wsd_decay_samples` beside `--rampup-batch-size`"),
          ruled("--decoupled-lr", Takes::one, rules::decoupled_lr,
                "`optimizer_groups`: a group of the token embedding and the head with this `lr`"),
          ruled("--decoupled-min-lr", Takes::one, rules::decoupled_min_lr,
                "`min_lr` of the group that `--decoupled-lr` makes; refused without it"),
          harmless("--override-opt-param-scheduler", "flags override the run on disk, and changes are reported"),
          same_truth("--use-checkpoint-opt-param-scheduler"),
      }};
}

MegatronSection megatron_precision_flags() {
  const std::string format = "`fp8_format`; without `--fp8-recipe` also `fp8_recipe` delayed";
  const std::string recipe = "`fp8_recipe`; mxfp8 is refused: it needs Blackwell";
  const std::string interval = "ignored in Megatron-LM too: scales are computed after every step";
  return {"Precision",
          {
              sets("--bf16", "dtype", "bfloat16"),
              sets("--fp16", "dtype", "float16"),
              harmless("--fp16-lm-cross-entropy", "the loss is float32, of float16 logits"),
              same("--loss-scale"),
              same("--initial-loss-scale"),
              same("--min-loss-scale"),
              same("--loss-scale-window"),
              same("--hysteresis"),
              ruled("--fp8", Takes::one, rules::fp8_format, format),
              ruled("--fp8-format", Takes::one, rules::fp8_format, format),
              ruled("--fp8-recipe", Takes::one, rules::fp8_recipe, recipe),
              same("--fp8-margin"),
              harmless("--fp8-interval", interval, Takes::one),
              same("--fp8-amax-history-len"),
              same("--fp8-amax-compute-algo"),
              same_truth("--first-last-layers-bf16"),
              same("--num-layers-at-start-in-bf16"),
              same("--num-layers-at-end-in-bf16"),
              refused("--fp8-param-gather",
                      "weights are gathered in bfloat16, with their masters beside them; leave it out"),
              refused("--no-fp8-wgrad",
                      "gradients of weights are products in 8 bits like all others: train in bfloat16 to have none in "
                      "8 bits"),
              refused("--reuse-grad-buf-for-mxfp8-param-ag",
                      "the mxfp8 recipe is not supported: use `--fp8-recipe blockwise`, and leave it out"),
              refused("--fp32-residual-connection",
                      "the residual stream has the model's dtype: train in float32 (`--dtype float32`)"),
              ruled("--accumulate-allreduce-grads-in-fp32", Takes::nothing, rules::accumulate_in_fp32,
                    "`gradient_dtype` float32; refused together with a flag that makes it bfloat16"),
              only("--grad-reduce-in-fp32", {"true"}, "gradients are reduced in float32, whatever their dtype"),
              sets("--grad-reduce-in-bf16", "gradient_dtype", "bfloat16"),
              harmless("--attention-softmax-in-fp32", "it is float32"),
              harmless("--apply-query-key-layer-scaling", "scores are float32, so that the scaling cancels out"),
          }};
}

MegatronSection megatron_distributed_flags() {
  const std::string pipeline =
      "layers are assigned to stages by these counts: `--decoder-first-pipeline-num-layers` and its like";
  const std::string groups = "every sample has as many context-parallel ranks: `--context-parallel-size`; leave it out";
  const std::string tensor = "how Transformer Engine overlaps; `tp_comm_overlap` has one way";
  const std::string threads = "the launcher's environment sets how ranks connect";
  return {
      "Ranks",
      {
          same("--tensor-model-parallel-size"),
          refused("--model-parallel-size", "deprecated by Megatron-LM: use `--tensor-model-parallel-size`", Takes::one),
          same("--pipeline-model-parallel-size"),
          refused("--pipeline-model-parallel-layout", pipeline, Takes::one),
          same("--num-layers-per-virtual-pipeline-stage"),
          same("--num-virtual-stages-per-pipeline-rank"),
          same("--decoder-first-pipeline-num-layers"),
          same("--decoder-last-pipeline-num-layers"),
          sets("--account-for-embedding-in-pipeline-split", "account_for_embedding_in_pipeline_split", "true"),
          sets("--account-for-loss-in-pipeline-split", "account_for_loss_in_pipeline_split", "true"),
          refused("--standalone-embedding-stage", pipeline),
          harmless("--no-overlap-p2p-communication", "an overlap of pipeline parallelism"),
          harmless("--overlap-p2p-comm", "an overlap of pipeline parallelism"),
          harmless("--no-scatter-gather-tensors-in-pipeline", "a transport of pipeline parallelism"),
          same("--context-parallel-size"),
          ruled(
              "--cp-comm-type", Takes::some, rules::cp_comm_type,
              "`cp_comm_type`; `a2a` and `p2p` for all layers, other transports are refused. Layers of Mamba-2 and of "
              "linear attention exchange heads with either, as there"),
          refused("--hierarchical-context-parallel-sizes",
                  "all context-parallel ranks exchange in one way: `--cp-comm-type a2a` or `p2p`; leave it out",
                  Takes::some),
          refused("--hybrid-context-parallel", groups),
          refused("--dynamic-context-parallel", groups),
          refused("--max-seqlen-per-dp-cp-rank", groups, Takes::one),
          sets("--sequence-parallel", "sequence_parallel", "true"),
          sets("--use-distributed-optimizer", "use_distributed_optimizer", "true"),
          same("--num-distributed-optimizer-instances"),
          harmless("--overlap-grad-reduce", "an overlap"),
          harmless("--overlap-param-gather", "an overlap"),
          harmless("--overlap-param-gather-with-optimizer-step", "an overlap"),
          harmless("--no-align-grad-reduce", "an overlap"),
          harmless("--no-align-param-gather", "an overlap"),
          harmless("--ddp-bucket-size", "buckets only determine when gradients are reduced", Takes::one),
          harmless("--ddp-num-buckets", "buckets only determine when gradients are reduced", Takes::one),
          harmless("--ddp-average-in-collective", "the loss is scaled by the mean, and gradients are summed"),
          harmless("--defer-embedding-wgrad-compute", "an overlap"),
          harmless("--wgrad-deferral-limit", "an overlap", Takes::one),
          sets("--use-torch-fsdp2", "data_parallel_sharding_strategy", "optim_grads_params"),
          harmless("--use-megatron-fsdp", "only `--data-parallel-sharding-strategy` sets what is sharded"),
          same("--data-parallel-sharding-strategy"),
          ruled("--tp-comm-overlap", Takes::nothing, rules::tp_comm_overlap,
                "`tp_comm_overlap = true` for micro-batches of at least 32768 tokens; smaller ones gain nothing"),
          harmless("--tp-comm-overlap-cfg", tensor, Takes::one),
          harmless("--tp-comm-overlap-rs-dgrad", tensor),
          harmless("--disable-tp-comm-overlap-ag", tensor),
          harmless("--disable-tp-comm-overlap-rs", tensor),
          harmless("--disable-tp-comm-bulk-dgrad", tensor),
          harmless("--disable-tp-comm-bulk-wgrad", tensor),
          harmless("--disable-tp-comm-split-ag", tensor),
          harmless("--disable-tp-comm-split-rs", tensor),
          harmless("--tp-comm-bootstrap-backend", tensor, Takes::one),
          harmless("--no-async-tensor-model-parallel-allreduce", tensor),
          harmless("--use-tp-pp-dp-mapping", "the order of the axes is fixed"),
          harmless("--distributed-backend", threads, Takes::one),
          same("--distributed-timeout-minutes"),
          harmless("--nccl-communicator-config-path", threads, Takes::one),
          harmless("--use-nccl-ub", threads),
          harmless("--local-rank", threads, Takes::one),
          harmless("--fake-init-process-group", "`witan plan` needs no ranks that exist"),
      }};
}

MegatronSection megatron_kernel_flags() {
  const std::string kernels = "a choice of kernels";
  const std::string graphs = "a GPU captures the whole step as one CUDA graph";
  const std::string python = "there is no Python";
  return {"Kernels and the process",
          {
              harmless("--use-mcore-models", "there is one kind of model"),
              refused("--use-legacy-models",
                      "legacy models compute differently: give the command line of the same model in Megatron-Core"),
              harmless("--transformer-impl", kernels, Takes::one),
              harmless("--use-flash-attn", "attention never stores its scores"),
              harmless("--attention-backend", "attention never stores its scores", Takes::one),
              harmless("--no-masked-softmax-fusion", kernels),
              sets("--no-bias-gelu-fusion", "gelu_tanh", "false"),
              harmless("--no-bias-swiglu-fusion", kernels),
              harmless("--no-bias-dropout-fusion", kernels),
              harmless("--no-rope-fusion", kernels),
              harmless("--no-persist-layer-norm", kernels),
              harmless("--no-gradient-accumulation-fusion", kernels),
              harmless("--cross-entropy-loss-fusion", kernels),
              harmless("--cross-entropy-fusion-impl", kernels, Takes::one),
              harmless("--no-clone-scatter-output-in-embedding", kernels),
              harmless("--te-rng-tracker", graphs),
              harmless("--enable-cuda-graph", graphs),
              harmless("--external-cuda-graph", graphs),
              ruled("--cuda-graph-impl", Takes::one, rules::cuda_graph_impl,
                    "none: `cuda_graph` false; otherwise the whole step is captured as one CUDA graph where possible"),
              harmless("--cuda-graph-scope", graphs, Takes::some),
              harmless("--cuda-graph-modules", graphs, Takes::some),
              harmless("--cuda-graph-warmup-steps", graphs, Takes::one),
              harmless("--inference-cuda-graph-scope", graphs, Takes::one),
              harmless("--use-cpu-initialization", "initial weights do not depend on the device"),
              harmless("--empty-unused-memory-level", "memory is reserved only once", Takes::one),
              harmless("--manual-gc", python),
              harmless("--manual-gc-interval", python, Takes::one),
              harmless("--no-manual-gc-eval", python),
              harmless("--enable-experimental", "experimental flags are refused or accepted one by one"),
          }};
}

}  // namespace witan::cli
