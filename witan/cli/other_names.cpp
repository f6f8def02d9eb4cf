#include "witan/cli/other_names.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace witan::cli {
namespace {

constexpr std::pair<std::string_view, std::string_view> kOtherCommands[] = {
    {"rm", "remove"},       {"delete", "remove"},   {"del", "remove"},     {"diff", "compare"},
    {"ls", "runs"},         {"list", "runs"},       {"pretrain", "train"}, {"finetune", "train"},
    {"sft", "train"},       {"rl", "train"},        {"grpo", "train"},     {"dpo", "train"},
    {"sample", "generate"}, {"infer", "generate"},  {"evaluate", "eval"},  {"preprocess", "prepare"},
    {"tokenise", "encode"}, {"tokenize", "encode"}, {"download", "fetch"}, {"dry-run", "plan"}};

constexpr std::string_view kResume = "a run is resumed by its name: `witan train --run NAME`";
constexpr std::string_view kEpochs = "the length of a run is counted in steps: --train-iters N";
constexpr std::string_view kAccumulate =
    "gradients are accumulated over as many micro-batches as --global-batch-size has: set that, and --micro-batch-size";
constexpr std::string_view kFolder = "all of a run goes to its folder, FOLDER/NAME: --runs-folder FOLDER --run NAME";
constexpr std::string_view kCharts =
    "docs/formats/tensorboard.md has a script that uploads the curves and the configuration of a run";

constexpr std::string_view kWarmup = "the warm-up is counted in steps: --lr-warmup-iters N";
constexpr std::string_view kCompile =
    "there is nothing to compile: Witan's kernels are, and a GPU's step is captured as one CUDA graph (--cuda-graph)";

constexpr std::string_view kClip =
    "ratios below 1 - N and above 1 + N have no gradient: --clip-ratio-low N, --clip-ratio-high N";
constexpr std::string_view kBeta =
    "the divergence from the reference is weighted by --kl-loss-coef with --objective policy, and by --dpo-beta with "
    "--objective preference";
constexpr std::string_view kLossType =
    "the loss is chosen by --loss-agg-mode and --importance-sampling-level with --objective policy, and by "
    "--dpo-loss-type with --objective preference (docs/rl.md)";
constexpr std::string_view kPromptLength = "prompt and answer share a sequence: --seq-length N";
constexpr std::string_view kIterations =
    "each sampled answer is trained on once; --steps-per-generation N samples the answers of N steps at once";
constexpr std::string_view kEngine =
    "answers are sampled by the training weights, in the same process: there is no other engine to configure";
constexpr std::string_view kTemperature =
    "--rollout-temperature N is that of sampled answers, --sample-temperature N that of a run's samples";
constexpr std::string_view kTruncation =
    "answers are sampled from all tokens, since those that are left out would have no probability in training; "
    "--rollout-temperature N below 1 makes unlikely tokens rarer in both";

constexpr std::pair<std::string_view, std::string_view> kWays[] = {{"--warmup-ratio", kWarmup},
                                                                   {"--lr-warmup-fraction", kWarmup},
                                                                   {"--compile", kCompile},
                                                                   {"--torch-compile", kCompile},
                                                                   {"--compile.enable", kCompile},
                                                                   {"--resume", kResume},
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
                                                                   {"--wandb-name", kCharts},
                                                                   {"--wandb-run-name", kCharts},
                                                                   {"--wandb-save-dir", kCharts},
                                                                   {"--report-to", kCharts},
                                                                   {"--epsilon", kClip},
                                                                   {"--cliprange", kClip},
                                                                   {"--eps-clip", kClip},
                                                                   {"--beta", kBeta},
                                                                   {"--loss-type", kLossType},
                                                                   {"--max-prompt-length", kPromptLength},
                                                                   {"--prompt-max-len", kPromptLength},
                                                                   {"--num-iterations", kIterations},
                                                                   {"--ppo-epochs", kIterations},
                                                                   {"--use-vllm", kEngine},
                                                                   {"--vllm-mode", kEngine},
                                                                   {"--vllm-gpu-memory-utilization", kEngine},
                                                                   {"--temperature", kTemperature},
                                                                   {"--top-p", kTruncation},
                                                                   {"--top-k", kTruncation},
                                                                   {"--min-p", kTruncation},
                                                                   {"--rollout-top-p", kTruncation},
                                                                   {"--rollout-top-k", kTruncation},
                                                                   {"--repetition-penalty", kTruncation}};

}  // namespace

std::string with_dashes(std::string flag) {
  if (flag.starts_with("--")) std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string way_instead(std::string_view flag) {
  const std::string spelt = with_dashes(std::string(flag));
  for (const auto& [other, way] : kWays)
    if (spelt == other) return std::string(way);
  return "";
}

std::string nearest_way(std::string_view flag) {
  std::vector<std::string> names;
  for (const auto& [other, way] : kWays) names.emplace_back(other);
  return nearest(flag, names);
}

OtherNames other_commands() {
  return kOtherCommands;
}

}  // namespace witan::cli
