#include "witan/base/config/other_flags.h"

#include <algorithm>
#include <utility>

namespace witan {
namespace {

// Flags of transformers and its configurations, nanoGPT, lit-gpt, DeepSpeed, vLLM, torchtitan and torchrun.
constexpr std::pair<std::string_view, std::string_view> kOtherFlags[] = {
    {"--tp", "--tensor-model-parallel-size"},
    {"--tensor-parallel-size", "--tensor-model-parallel-size"},
    {"--tp-size", "--tensor-model-parallel-size"},
    {"--tensor-parallel", "--tensor-model-parallel-size"},
    {"--tensor-parallel-degree", "--tensor-model-parallel-size"},
    {"--parallelism.tensor-parallel-degree", "--tensor-model-parallel-size"},
    {"--pp", "--pipeline-model-parallel-size"},
    {"--pipeline-parallel-size", "--pipeline-model-parallel-size"},
    {"--pp-size", "--pipeline-model-parallel-size"},
    {"--pipeline-parallel", "--pipeline-model-parallel-size"},
    {"--pipeline-parallel-degree", "--pipeline-model-parallel-size"},
    {"--parallelism.pipeline-parallel-degree", "--pipeline-model-parallel-size"},
    {"--cp", "--context-parallel-size"},
    {"--cp-size", "--context-parallel-size"},
    {"--context-parallel", "--context-parallel-size"},
    {"--context-parallel-degree", "--context-parallel-size"},
    {"--parallelism.context-parallel-degree", "--context-parallel-size"},
    {"--ep", "--expert-model-parallel-size"},
    {"--expert-parallel-size", "--expert-model-parallel-size"},
    {"--ep-size", "--expert-model-parallel-size"},
    {"--expert-parallel", "--expert-model-parallel-size"},
    {"--expert-parallel-degree", "--expert-model-parallel-size"},
    {"--parallelism.expert-parallel-degree", "--expert-model-parallel-size"},
    {"--etp", "--expert-tensor-parallel-size"},
    {"--parallelism.expert-tensor-parallel-degree", "--expert-tensor-parallel-size"},
    {"--dp", "--mesh"},
    {"--data-parallel", "--mesh"},
    {"--data-parallel-size", "--mesh"},
    {"--data-parallel-shard-degree", "--mesh"},
    {"--data-parallel-replicate-degree", "--mesh"},
    {"--parallelism.data-parallel-shard-degree", "--mesh"},
    {"--parallelism.data-parallel-replicate-degree", "--mesh"},
    {"--fsdp", "--data-parallel-sharding-strategy"},
    {"--zero", "--data-parallel-sharding-strategy"},
    {"--layers", "--num-layers"},
    {"--n-layer", "--num-layers"},
    {"--n-layers", "--num-layers"},
    {"--num-hidden-layers", "--num-layers"},
    {"--heads", "--num-attention-heads"},
    {"--n-head", "--num-attention-heads"},
    {"--n-heads", "--num-attention-heads"},
    {"--num-heads", "--num-attention-heads"},
    {"--num-key-value-heads", "--num-query-groups"},
    {"--d-model", "--hidden-size"},
    {"--n-embd", "--hidden-size"},
    {"--hidden-dim", "--hidden-size"},
    {"--intermediate-size", "--ffn-hidden-size"},
    {"--experts", "--num-experts"},
    {"--num-local-experts", "--num-experts"},
    {"--n-routed-experts", "--num-experts"},
    {"--num-experts-per-tok", "--moe-router-topk"},
    {"--top-k-experts", "--moe-router-topk"},
    {"--moe-intermediate-size", "--moe-ffn-hidden-size"},
    {"--router-aux-loss-coef", "--moe-aux-loss-coeff"},
    {"--rope-theta", "--rotary-base"},
    {"--rms-norm-eps", "--norm-epsilon"},
    {"--layer-norm-eps", "--norm-epsilon"},
    {"--model-name-or-path", "--init-from"},
    {"--pretrained-model-name-or-path", "--init-from"},
    {"--checkpoint.initial-load-path", "--init-from"},
    {"--seq-len", "--seq-length"},
    {"--sequence-length", "--seq-length"},
    {"--training.seq-len", "--seq-length"},
    {"--max-seq-len", "--seq-length"},
    {"--max-seq-length", "--seq-length"},
    {"--block-size", "--seq-length"},
    {"--context-length", "--seq-length"},
    {"--steps", "--train-iters"},
    {"--max-steps", "--train-iters"},
    {"--num-steps", "--train-iters"},
    {"--max-iters", "--train-iters"},
    {"--iterations", "--train-iters"},
    {"--training-steps", "--train-iters"},
    {"--training.steps", "--train-iters"},
    {"--local-batch-size", "--micro-batch-size"},
    {"--training.local-batch-size", "--micro-batch-size"},
    {"--training.global-batch-size", "--global-batch-size"},
    {"--device-batch-size", "--micro-batch-size"},
    {"--per-device-train-batch-size", "--micro-batch-size"},
    {"--learning-rate", "--lr"},
    {"--optimizer.lr", "--lr"},
    {"--optimizer.name", "--optimizer"},
    {"--adam-epsilon", "--adam-eps"},
    {"--max-lr", "--lr"},
    {"--min-learning-rate", "--min-lr"},
    {"--lr-scheduler", "--lr-decay-style"},
    {"--lr-scheduler-type", "--lr-decay-style"},
    {"--warmup-steps", "--lr-warmup-iters"},
    {"--warmup-iters", "--lr-warmup-iters"},
    {"--num-warmup-steps", "--lr-warmup-iters"},
    {"--lr-scheduler.warmup-steps", "--lr-warmup-iters"},
    {"--lr-scheduler.decay-type", "--lr-decay-style"},
    {"--training.max-norm", "--clip-grad"},
    {"--grad-clip", "--clip-grad"},
    {"--gradient-clipping", "--clip-grad"},
    {"--max-grad-norm", "--clip-grad"},
    {"--optim", "--optimizer"},
    {"--precision", "--dtype"},
    {"--gradient-checkpointing", "--recompute-granularity"},
    {"--activation-checkpoint.mode", "--recompute-granularity"},
    {"--checkpoint.interval", "--save-interval"},
    {"--metrics.log-freq", "--log-interval"},
    {"--save-steps", "--save-interval"},
    {"--save-every", "--save-interval"},
    {"--eval-steps", "--eval-interval"},
    {"--eval-every", "--eval-interval"},
    {"--logging-steps", "--log-interval"},
    {"--run-name", "--run"},
    {"--dataset", "--data"},
    {"--training.dataset", "--data"},
    {"--training.dataset-path", "--data"},
    {"--dataset-name", "--data"},
    {"--train-data", "--data"},
    {"--train-file", "--data"},
    {"--tokenizer-path", "--tokenizer"},
    {"--tokenizer-name", "--tokenizer"}};

}  // namespace

OtherNames other_flags() {
  return kOtherFlags;
}

std::string other_key(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::ranges::replace(flag, '_', '-');
  const auto* found = std::ranges::find(kOtherFlags, flag, [](const auto& names) { return names.first; });
  if (found == std::end(kOtherFlags)) return "";
  std::string name(found->second.substr(2));
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace witan
