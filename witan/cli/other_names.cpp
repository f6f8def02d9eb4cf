#include "witan/cli/other_names.h"

#include <algorithm>
#include <utility>

namespace witan::cli {
namespace {

// From transformers, nanoGPT, lit-gpt, DeepSpeed, torchtitan and torchrun.
constexpr std::pair<std::string_view, std::string_view> kOtherFlags[] = {
    {"--tp", "--tensor-model-parallel-size"},
    {"--tensor-parallel-size", "--tensor-model-parallel-size"},
    {"--pp", "--pipeline-model-parallel-size"},
    {"--pipeline-parallel-size", "--pipeline-model-parallel-size"},
    {"--cp", "--context-parallel-size"},
    {"--ep", "--expert-model-parallel-size"},
    {"--expert-parallel-size", "--expert-model-parallel-size"},
    {"--etp", "--expert-tensor-parallel-size"},
    {"--dp", "--mesh"},
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
    {"--seq-len", "--seq-length"},
    {"--sequence-length", "--seq-length"},
    {"--max-seq-len", "--seq-length"},
    {"--max-seq-length", "--seq-length"},
    {"--block-size", "--seq-length"},
    {"--context-length", "--seq-length"},
    {"--steps", "--train-iters"},
    {"--max-steps", "--train-iters"},
    {"--num-steps", "--train-iters"},
    {"--max-iters", "--train-iters"},
    {"--iterations", "--train-iters"},
    {"--device-batch-size", "--micro-batch-size"},
    {"--per-device-train-batch-size", "--micro-batch-size"},
    {"--learning-rate", "--lr"},
    {"--max-lr", "--lr"},
    {"--min-learning-rate", "--min-lr"},
    {"--lr-scheduler", "--lr-decay-style"},
    {"--lr-scheduler-type", "--lr-decay-style"},
    {"--warmup-steps", "--lr-warmup-iters"},
    {"--warmup-iters", "--lr-warmup-iters"},
    {"--num-warmup-steps", "--lr-warmup-iters"},
    {"--grad-clip", "--clip-grad"},
    {"--gradient-clipping", "--clip-grad"},
    {"--max-grad-norm", "--clip-grad"},
    {"--optim", "--optimizer"},
    {"--precision", "--dtype"},
    {"--gradient-checkpointing", "--recompute-granularity"},
    {"--save-steps", "--save-interval"},
    {"--save-every", "--save-interval"},
    {"--eval-steps", "--eval-interval"},
    {"--eval-every", "--eval-interval"},
    {"--logging-steps", "--log-interval"},
    {"--run-name", "--run"},
    {"--dataset", "--data"},
    {"--train-data", "--data"},
    {"--train-file", "--data"},
    {"--tokenizer-path", "--tokenizer"},
    {"--tokenizer-name", "--tokenizer"}};

constexpr std::string_view kResume = "a run is resumed by its name: `witan train --run NAME`";
constexpr std::string_view kEpochs = "the length of a run is counted in steps: --train-iters N";
constexpr std::string_view kAccumulate =
    "gradients are accumulated over as many micro-batches as --global-batch-size has: set that, and --micro-batch-size";
constexpr std::string_view kFolder = "all of a run goes to its folder, FOLDER/NAME: --runs-folder FOLDER --run NAME";
constexpr std::string_view kCharts =
    "docs/formats/tensorboard.md has a script that uploads the curves and the configuration of a run";

constexpr std::pair<std::string_view, std::string_view> kWays[] = {{"--resume", kResume},
                                                                   {"--resume-from", kResume},
                                                                   {"--resume-from-checkpoint", kResume},
                                                                   {"--epochs", kEpochs},
                                                                   {"--num-epochs", kEpochs},
                                                                   {"--num-train-epochs", kEpochs},
                                                                   {"--grad-accum", kAccumulate},
                                                                   {"--grad-accum-steps", kAccumulate},
                                                                   {"--gradient-accumulation", kAccumulate},
                                                                   {"--gradient-accumulation-steps", kAccumulate},
                                                                   {"--accumulate-grad-batches", kAccumulate},
                                                                   {"--output-dir", kFolder},
                                                                   {"--out-dir", kFolder},
                                                                   {"--wandb", kCharts},
                                                                   {"--wandb-project", kCharts},
                                                                   {"--wandb-name", kCharts},
                                                                   {"--wandb-run-name", kCharts},
                                                                   {"--wandb-exp-name", kCharts},
                                                                   {"--wandb-entity", kCharts},
                                                                   {"--wandb-save-dir", kCharts},
                                                                   {"--report-to", kCharts}};

}  // namespace

OtherNames other_flags() {
  return kOtherFlags;
}

std::string way_instead(std::string_view flag) {
  std::string spelt(flag);
  std::ranges::replace(spelt, '_', '-');
  for (const auto& [other, way] : kWays)
    if (spelt == other) return std::string(way);
  return "";
}

}  // namespace witan::cli
