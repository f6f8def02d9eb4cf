#include "witan/train/step/sequence_objectives.h"

#include <utility>

#include "witan/ops/objective/objective.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

ops::ObjectiveTokens tokens_of(const ObjectivePass& pass) {
  const Tensor& mask = pass.inputs.mask(pass.micro_batch);
  const Tensor ids = pass.inputs.input(pass.micro_batch).where.sequence_ids;
  const int64_t rows = ids.size(0), length = ids.size(1) * (pass.context ? pass.context->size() : 1);
  return {mask, {ids.reshape({rows * ids.size(1)}), rows, length}, pass.context};
}

ops::TokenLosses token_losses(const ObjectivePass& pass, Var logits, const Tensor& shares) {
  return pass.model.token_losses(pass.tape, std::move(logits), pass.inputs.targets(pass.micro_batch), shares);
}

// A figure's value, which is no part of what is minimised.
void add_figure(const ObjectivePass& pass, const LossSpec& figure, const Tensor& value) {
  pass.tape.add_loss(figure, pass.tape.constant(value));
}

// `number` [1]: the sequences that the loss is a mean over.
Tensor weights_of_sequences(const ObjectivePass& pass, const ops::ObjectiveTokens& tokens, const Tensor& number,
                            const Tensor& counts, double scale) {
  Stream& stream = pass.tape.stream();
  const Tensor weights = stream.empty(tokens.mask.shape(), accumulator(pass.model.config().compute_dtype()));
  kernels::sequence_weights(stream, weights, tokens.mask, number, counts, tokens.sequences, scale);
  return weights;
}

class PolicyObjective : public Objective {
 public:
  explicit PolicyObjective(const RunConfig& config)
      : config_(config.objective),
        temperature_(config.temperature()),
        reference_in_column_(config.reference() == ReferenceKind::columns) {
    if (config_.loss_scale_factor == 0) config_.loss_scale_factor = config.data.seq_length;
    if (config_.kl_loss_coef > 0) losses_.push_back({"kl_loss", config_.kl_loss_coef});
    for (const char* figure : kFigures) losses_.push_back({figure, 0});
  }

  std::vector<ColumnSpec> columns() const override {
    std::vector<ColumnSpec> columns = {{kAdvantages}, {kOldLogprobs}};
    if (config_.importance_sampling_cap > 0) columns.push_back({kRolloutLogprobs});
    if (reference_in_column_) columns.push_back({kRefLogprobs});
    return columns;
  }

  bool counts_sequences() const override { return config_.loss_agg_mode != "token_mean"; }

  std::vector<LossSpec> losses() const override { return losses_; }

  void record(const ObjectivePass& pass, ModelOutput& out) const override {
    const auto column = [&](const char* name) -> const Tensor& { return pass.inputs.column(pass.micro_batch, name); };
    Stream& stream = pass.tape.stream();
    const ops::ObjectiveTokens tokens = tokens_of(pass);
    const Tensor shares = target_weights(pass);
    const ops::TokenLosses found = token_losses(pass, tempered(pass.tape, std::move(out.logits), temperature_), shares);
    const bool of_sequences = config_.importance_sampling_level == "sequence";
    Tensor counts;
    if (of_sequences || config_.loss_agg_mode == "seq_mean_token_mean") counts = ops::sequence_counts(stream, tokens);
    const Tensor weights = weights_of(pass, tokens, shares, counts);
    const bool capped = config_.importance_sampling_cap > 0;
    const ops::TermSums sums =
        ops::policy_loss(pass.tape, found.losses,
                         {column(kAdvantages), column(kOldLogprobs), capped ? column(kRolloutLogprobs) : Tensor()},
                         tokens, weights, shares, of_sequences ? counts : Tensor(),
                         {config_.clip_ratio_low, config_.clip_ratio_high, config_.importance_sampling_cap});
    auto next = losses_.begin();
    pass.tape.add_loss(*next++, sums.loss);
    if (config_.kl_loss_coef > 0)
      pass.tape.add_loss(
          *next++, ops::kl_loss(pass.tape, found.losses, reference_in_column_ ? column(kRefLogprobs) : pass.reference,
                                tokens.mask, weights));
    for (const Tensor& figure : sums.figures) add_figure(pass, *next++, figure);
    const Tensor entropy = stream.empty({1}, shares.dtype());
    kernels::weighted_sums(stream, entropy, found.entropies.reshape({1, found.entropies.elements()}), shares);
    add_figure(pass, *next, entropy);
  }

 private:
  // Those of ops::policy_loss(), then the entropy of the policy.
  static constexpr const char* kFigures[] = {"policy_ratio", "clip_fraction_low", "clip_fraction_high",
                                             "logprob_difference", "policy_entropy"};

  // The weight of each token in the loss.
  Tensor weights_of(const ObjectivePass& pass, const ops::ObjectiveTokens& tokens, const Tensor& shares,
                    const Tensor& counts) const {
    if (config_.loss_agg_mode == "token_mean") return shares;
    const Tensor number = pass.inputs.sequence_count();
    if (config_.loss_agg_mode == "seq_mean_token_mean") return weights_of_sequences(pass, tokens, number, counts, 1);
    return weights_of_sequences(pass, tokens, number, {}, 1.0 / static_cast<double>(config_.loss_scale_factor));
  }

  ObjectiveConfig config_;
  double temperature_;
  bool reference_in_column_;
  std::vector<LossSpec> losses_ = {{"policy_loss"}};
};

// The source of the log probabilities that a loss compares with.
enum class Compared : uint8_t { with_model, with_column, with_nothing };

Tensor reference_of(const ObjectivePass& pass, Compared compared) {
  if (compared == Compared::with_nothing) return {};
  return compared == Compared::with_model ? pass.reference : pass.inputs.column(pass.micro_batch, kRefLogprobs);
}

class PreferenceObjective : public Objective {
 public:
  PreferenceObjective(const kernels::PreferenceOptions& options, Compared compared)
      : options_(options), compared_(compared) {}

  std::vector<ColumnSpec> columns() const override {
    if (compared_ == Compared::with_column) return {{kRefLogprobs}};
    return {};
  }
  bool counts_sequences() const override { return true; }
  std::vector<LossSpec> losses() const override {
    std::vector<LossSpec> losses = {{"preference_loss"}};
    for (const char* figure : kFigures) losses.push_back({figure, 0});
    return losses;
  }

  void record(const ObjectivePass& pass, ModelOutput& out) const override {
    const std::vector<LossSpec> specs = losses();
    const ops::TermSums sums = sums_of(pass, out, pass.inputs.sequence_count());
    pass.tape.add_loss(specs[0], sums.loss);
    for (size_t i = 0; i < sums.figures.size(); ++i) add_figure(pass, specs[i + 1], sums.figures[i]);
  }

  std::vector<std::string> evaluated() const override { return {std::begin(kFigures), std::end(kFigures)}; }

  std::vector<Tensor> evaluate(const ObjectivePass& pass, ModelOutput& out) const override {
    Stream& stream = pass.tape.stream();
    const Tensor of_a_pair = stream.empty({1}, DType::f64);
    constexpr double kTexts = 2;
    stream.write(of_a_pair, &kTexts);
    const ops::TermSums sums = sums_of(pass, out, of_a_pair);
    std::vector<Tensor> all = {sums.loss.value()};
    all.insert(all.end(), sums.figures.begin(), sums.figures.end());
    return all;
  }

 private:
  // Those of ops::preference_loss().
  static constexpr const char* kFigures[] = {"reward_accuracy", "reward_margin", "reward_chosen", "reward_rejected",
                                             "chosen_loss"};

  // Sums over pairs, divided by half of `number` [1], the texts of all pairs.
  ops::TermSums sums_of(const ObjectivePass& pass, ModelOutput& out, const Tensor& number) const {
    const ops::ObjectiveTokens tokens = tokens_of(pass);
    const ops::TokenLosses found = token_losses(pass, std::move(out.logits), target_weights(pass));
    const Tensor counts = ops::sequence_counts(pass.tape.stream(), tokens);
    return ops::preference_loss(pass.tape, found.losses, reference_of(pass, compared_), tokens,
                                weights_of_sequences(pass, tokens, number, counts, 1), counts, options_);
  }

  kernels::PreferenceOptions options_;
  Compared compared_;
};

}  // namespace

Var tempered(Tape& tape, Var logits, double temperature) {
  return temperature == 1 ? logits : ops::scale_over(tape, std::move(logits), 1 / temperature);
}

std::unique_ptr<Objective> make_policy_objective(const RunConfig& config) {
  return std::make_unique<PolicyObjective>(config);
}

std::unique_ptr<Objective> make_dpo_objective(const RunConfig& config) {
  using Loss = kernels::PreferenceOptions::Loss;
  const ObjectiveConfig& objective = config.objective;
  const std::string& type = objective.dpo_loss_type;
  const kernels::PreferenceOptions options{.beta = objective.dpo_beta,
                                           .label_smoothing = objective.dpo_label_smoothing,
                                           .loss = type == "robust"  ? Loss::robust
                                                   : type == "hinge" ? Loss::hinge
                                                   : type == "ipo"   ? Loss::ipo
                                                                     : Loss::sigmoid,
                                           .averages = type == "sigmoid_norm" || type == "ipo",
                                           .sft_weight = objective.rpo_alpha};
  return std::make_unique<PreferenceObjective>(
      options, config.reference() == ReferenceKind::none ? Compared::with_nothing : Compared::with_model);
}

std::unique_ptr<Objective> make_preference_objective(const kernels::PreferenceOptions& options) {
  return std::make_unique<PreferenceObjective>(options, Compared::with_column);
}

}  // namespace witan
