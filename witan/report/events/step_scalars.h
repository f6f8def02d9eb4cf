// Figures of a step, each declared once: its key in metrics.jsonl, and where else it is shown. Code that computes a
// figure sets its value among a step's scalars (StepResult::scalars); recorders and charts need not know it.
//
// A new figure is a declaration here and the set() of its value. Steps that have no value leave it out everywhere. A
// figure may also have nothing but a key, such as a loss that a module records (LossSpec), or one that another version
// wrote to a file: it then is shown under its key in TensorBoard, in a chart and in the progress line.
#pragma once

#include <climits>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

struct StepScalar {
  // Among several the one with the lower place comes first; those without one come last, in the order of their keys.
  static constexpr int kLast = INT_MAX;

  // The place in a line of metrics.jsonl, among others in the order of kStepScalars.
  enum class Among : uint8_t { norms, overflows };
  struct Tag {
    const char* name;  // in TensorBoard
    int place = kLast;
  };
  // "label value unit" in a line of text. `format`: fmt's, for a double; null: "12.3 M".
  struct Text {
    const char *label, *format, *unit = "";
    int place = kLast;
  };
  // A chart in the report, at the end of the section on learning; those with equal titles and places share it.
  struct Curve {
    const char *title, *unit, *series;
    int colour;
    bool zero = false, log2 = false;  // the y axis starts at 0; powers of two are shown
    int place = kLast;
  };

  const char* key;  // docs/formats/metrics.md
  Among among = Among::norms;
  bool is_loss = false;  // an objective records it as a loss of this name, which Megatron-LM's line lists itself
  std::optional<Tag> tensorboard = {};
  std::optional<Curve> chart = {};
  std::optional<Text> progress = {};  // the progress line
  std::optional<Text> megatron = {};  // Megatron-LM's line, between the gradient norm and the skipped iterations
};

// L2, of all parameters after the update but those kept as codes; with log_params_norm.
inline constexpr StepScalar kParamsNorm{.key = "params_norm",
                                        .tensorboard = StepScalar::Tag{"params-norm", 4},
                                        .progress = StepScalar::Text{"params norm ", "{:.3f}", "", 1},
                                        .megatron = StepScalar::Text{"params norm: ", "{:.3f}", "", 2}};
// Gradients that are exactly 0; with log_num_zeros_in_grad.
inline constexpr StepScalar kNumZeros{.key = "num_zeros",
                                      .tensorboard = StepScalar::Tag{"num-zeros", 5},
                                      .progress = StepScalar::Text{"zero gradients ", nullptr, "", 2},
                                      .megatron = StepScalar::Text{"num zeros: ", "{:.1f}", "", 1}};
// TFLOP/s of a rank by Megatron-LM's formula; with log_throughput. Megatron-LM's line has the mean of an interval.
inline constexpr StepScalar kMegatronTflops{.key = "megatron_tflops",
                                            .tensorboard = StepScalar::Tag{"throughput", 1},
                                            .progress = StepScalar::Text{"", "{:.3g}", " TFLOP/s/rank", 3}};
// The next step's, in float16 models. Megatron-LM's line has one for every model.
inline constexpr StepScalar kLossScale{
    .key = "loss_scale",
    .tensorboard = StepScalar::Tag{"loss-scale", 2},
    .chart = StepScalar::Curve{"Loss scale", "powers of two", "scale", 3, false, true, 2}};
// The largest over all heads, before the update; with qk_clip.
inline constexpr StepScalar kMaxAttentionLogit{
    .key = "max_attention_logit",
    .tensorboard = StepScalar::Tag{"max_attention_logit", 3},
    .chart =
        StepScalar::Curve{"Largest attention logit", "over all heads, before QK-clip", "logit", 2, true, false, 1}};
// With rollouts, of the step's sampled answers: the mean reward and its standard deviation.
inline constexpr StepScalar kReward{
    .key = "reward",
    .tensorboard = StepScalar::Tag{"reward", 6},
    .chart = StepScalar::Curve{"Reward", "over the step's answers", "mean", 1, false, false, 3},
    .progress = StepScalar::Text{"reward ", "{:.3f}", "", 0},
    .megatron = StepScalar::Text{"reward: ", "{:.3f}", "", 3}};
inline constexpr StepScalar kRewardStd{
    .key = "reward_std",
    .tensorboard = StepScalar::Tag{"reward-std", 7},
    .chart = StepScalar::Curve{"Reward", "over the step's answers", "standard deviation", 3, false, false, 3}};
// Tokens, mean.
inline constexpr StepScalar kCompletionLength{
    .key = "completion_length",
    .tensorboard = StepScalar::Tag{"completion-length", 8},
    .chart = StepScalar::Curve{"Length of answers", "tokens, mean over the step", "length", 4, true, false, 4}};
// Shares of the answers: in groups whose rewards are all equal, of the greatest length, without text.
inline constexpr StepScalar kEqualGroups{
    .key = "equal_groups",
    .tensorboard = StepScalar::Tag{"equal-groups", 9},
    .chart = StepScalar::Curve{"Answers", "share of the step's", "rewarded like all to the prompt", 1, true, false, 5},
    .progress = StepScalar::Text{"equal groups ", "{:.2f}", "", 4}};
inline constexpr StepScalar kCutCompletions{
    .key = "cut_completions",
    .tensorboard = StepScalar::Tag{"cut-completions", 10},
    .chart = StepScalar::Curve{"Answers", "share of the step's", "cut off at the greatest length", 2, true, false, 5}};
inline constexpr StepScalar kEmptyCompletions{
    .key = "empty_completions",
    .tensorboard = StepScalar::Tag{"empty-completions", 11},
    .chart = StepScalar::Curve{"Answers", "share of the step's", "empty", 3, true, false, 5}};
// Samplings of a group until its rewards differed, mean; with max_num_gen_batches.
inline constexpr StepScalar kGenerationBatches{
    .key = "num_gen_batches",
    .tensorboard = StepScalar::Tag{"num-gen-batches", 12},
    .chart = StepScalar::Curve{"Samplings", "of a group, until its rewards differ", "mean", 4, true, false, 6}};
// With max_turns above 1: answers and inserted tokens of a conversation, means, and the shares of conversations that
// would have had more turns, and of those with an answer that the chat template would show otherwise.
inline constexpr StepScalar kTurns{
    .key = "turns",
    .tensorboard = StepScalar::Tag{"turns", 22},
    .chart = StepScalar::Curve{"Turns", "of a conversation, mean over the step", "turns", 1, true, false, 13},
    .progress = StepScalar::Text{"turns ", "{:.2f}", "", 8}};
inline constexpr StepScalar kInsertedTokens{
    .key = "inserted_tokens",
    .tensorboard = StepScalar::Tag{"inserted-tokens", 23},
    .chart = StepScalar::Curve{"Length of answers", "tokens, mean over the step", "inserted", 5, true, false, 4}};
inline constexpr StepScalar kCutByTurns{
    .key = "cut_by_turns",
    .tensorboard = StepScalar::Tag{"cut-by-turns", 24},
    .chart = StepScalar::Curve{"Answers", "share of the step's", "cut off by max_turns", 4, true, false, 5}};
inline constexpr StepScalar kRewrittenAnswers{
    .key = "rewritten_answers",
    .tensorboard = StepScalar::Tag{"rewritten-answers", 25},
    .chart = StepScalar::Curve{"Answers", "share of the step's", "that the template rewrites", 5, true, false, 5}};
// Tokens of prompts that were read to sample answers; a group's prompt counts once.
inline constexpr StepScalar kPromptTokensRead{.key = "prompt_tokens_read",
                                              .tensorboard = StepScalar::Tag{"prompt-tokens-read", 21}};
// Seconds of rank 0, part of the step's: those in which it sampled answers, and in which rewards were computed.
inline constexpr StepScalar kSamplingTime{
    .key = "sampling_s",
    .tensorboard = StepScalar::Tag{"sampling-time", 19},
    .chart = StepScalar::Curve{"Time of rollouts", "seconds", "sampling", 1, true, false, 12},
    .progress = StepScalar::Text{"sampling ", "{:.2f}", " s", 7}};
inline constexpr StepScalar kRewardTime{
    .key = "reward_s",
    .tensorboard = StepScalar::Tag{"reward-time", 20},
    .chart = StepScalar::Curve{"Time of rollouts", "seconds", "rewards", 3, true, false, 12}};
// Of policy gradients, means over the tokens that count; absent in steps without such tokens.
inline constexpr StepScalar kPolicyEntropy{
    .key = "policy_entropy",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"policy-entropy", 13},
    .chart = StepScalar::Curve{"Entropy of the policy", "nats, mean over tokens", "entropy", 4, true, false, 7},
    .progress = StepScalar::Text{"entropy ", "{:.3f}", "", 5}};
inline constexpr StepScalar kPolicyRatio{
    .key = "policy_ratio",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"policy-ratio", 14},
    .chart = StepScalar::Curve{"Ratio of probabilities", "training to sampling, mean over tokens", "ratio", 1, false,
                               false, 8}};
inline constexpr StepScalar kClipFractionLow{
    .key = "clip_fraction_low",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"clip-fraction-low", 15},
    .chart = StepScalar::Curve{"Clipped tokens", "share, without gradient", "ratio too low", 2, true, false, 9}};
inline constexpr StepScalar kClipFractionHigh{
    .key = "clip_fraction_high",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"clip-fraction-high", 16},
    .chart = StepScalar::Curve{"Clipped tokens", "share, without gradient", "ratio too high", 1, true, false, 9}};
inline constexpr StepScalar kLogprobDifference{
    .key = "logprob_difference",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"logprob-difference", 17},
    .chart = StepScalar::Curve{"Training and sampling", "mean absolute difference of log probabilities", "difference",
                               3, true, false, 10}};
inline constexpr StepScalar kKlLoss{
    .key = "kl_loss",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"kl-loss", 18},
    .chart = StepScalar::Curve{"Divergence from the reference", "k3, nats per token", "KL", 2, true, false, 11},
    .progress = StepScalar::Text{"KL ", "{:.4f}", "", 6}};
// Preferences report means over pairs: rewards of chosen and rejected answers, and the loss of the chosen ones' tokens.
inline constexpr StepScalar kRewardAccuracy{
    .key = "reward_accuracy",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"reward-accuracy", 26},
    .chart = StepScalar::Curve{"Accuracy of rewards", "share of pairs", "chosen above rejected", 1, true, false, 14},
    .progress = StepScalar::Text{"accuracy ", "{:.3f}", "", 9}};
inline constexpr StepScalar kRewardMargin{
    .key = "reward_margin",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"reward-margin", 27},
    .chart = StepScalar::Curve{"Rewards", "mean over pairs", "margin", 3, false, false, 15},
    .progress = StepScalar::Text{"margin ", "{:.3f}", "", 10}};
inline constexpr StepScalar kRewardChosen{
    .key = "reward_chosen",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"reward-chosen", 28},
    .chart = StepScalar::Curve{"Rewards", "mean over pairs", "chosen", 1, false, false, 15},
    .progress = StepScalar::Text{"chosen ", "{:.3f}", "", 11}};
inline constexpr StepScalar kRewardRejected{
    .key = "reward_rejected",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"reward-rejected", 29},
    .chart = StepScalar::Curve{"Rewards", "mean over pairs", "rejected", 2, false, false, 15},
    .progress = StepScalar::Text{"rejected ", "{:.3f}", "", 12}};
inline constexpr StepScalar kChosenLoss{
    .key = "chosen_loss",
    .is_loss = true,
    .tensorboard = StepScalar::Tag{"chosen-loss", 30},
    .chart = StepScalar::Curve{"Loss of chosen answers", "nats per token", "loss", 4, false, false, 16},
    .progress = StepScalar::Text{"loss of chosen ", "{:.3f}", "", 13}};
// Steps of this call so far that were rerun in several passes, or with exact counts, where receive buffers or
// exchanges are bounded.
inline constexpr StepScalar kPoolOverflows{.key = "pool_overflows", .among = StepScalar::Among::overflows};
inline constexpr StepScalar kExchangeOverflows{.key = "exchange_overflows", .among = StepScalar::Among::overflows};

inline constexpr const StepScalar* kStepScalars[] = {
    &kParamsNorm,
    &kNumZeros,
    &kMegatronTflops,
    &kLossScale,
    &kMaxAttentionLogit,
    &kReward,
    &kRewardStd,
    &kCompletionLength,
    &kEqualGroups,
    &kCutCompletions,
    &kEmptyCompletions,
    &kGenerationBatches,
    &kTurns,
    &kInsertedTokens,
    &kCutByTurns,
    &kRewrittenAnswers,
    &kPromptTokensRead,
    &kSamplingTime,
    &kRewardTime,
    &kPolicyEntropy,
    &kPolicyRatio,
    &kClipFractionLow,
    &kClipFractionHigh,
    &kLogprobDifference,
    &kKlLoss,
    &kRewardAccuracy,
    &kRewardMargin,
    &kRewardChosen,
    &kRewardRejected,
    &kChosenLoss,
    &kPoolOverflows,
    &kExchangeOverflows,
};

// A step's values.
class StepScalars {
 public:
  struct Entry {
    std::string key;
    double value;
    const StepScalar* declared;  // null: it has nothing but its key
  };
  // A value that is shown somewhere. It refers to the scalars that it is one of.
  template <class Where>
  struct Shown {
    std::string_view key;
    Where where;
    double value;
  };

  // The declaration must outlive it.
  void set(const StepScalar& declared, double value) { set(declared.key, &declared, value); }
  // For a figure that may have nothing but a key.
  void set(const std::string& key, double value);
  // All that `others` have replace those of the same keys.
  void update(const StepScalars& others);
  std::optional<double> get(std::string_view key) const;
  std::optional<double> get(const StepScalar& declared) const { return get(declared.key); }

  // In the order of kStepScalars, then others by their keys.
  const std::vector<Entry>& all() const { return entries_; }
  // Those that are shown there (StepScalar::tensorboard ...), by their places.
  template <class Where>
  std::vector<Shown<Where>> shown(std::optional<Where> StepScalar::*where) const;

  bool operator==(const StepScalars& other) const;

 private:
  void set(const std::string& key, const StepScalar* declared, double value);

  std::vector<Entry> entries_;
};

// The value as a text shows it, without label and unit.
std::string format_value(const StepScalar::Text& text, double value);

}  // namespace witan
