#include "witan/ops/objective/objective.h"

#include <nlohmann/json.hpp>

#include "support/gradcheck.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::values;

// Four sequences: one in each row, or two in each, with padding in between as other rows have it.
struct Texts {
  Rank& rank;
  int64_t rows, capacity;
  Tensor mask, ids;

  ops::ObjectiveTokens tokens() const { return {mask, {ids, rows, capacity}}; }
};

Json golden(const char* file) {
  return parse_json(read_file(fs::path(WITAN_SOURCE_DIR) / "tests/golden/objective" / file), file);
}

Tensor float_column(Rank& rank, const Json& values) {
  std::vector<float> floats;
  for (const Json& value : values) floats.push_back(value.get<float>());
  return rank.tensor<float>({static_cast<int64_t>(floats.size())}, floats);
}

// The golden sequences, `in_row` of them in each row.
Texts texts_of(Rank& rank, const Json& policy, int64_t in_row) {
  const auto B = policy.at("rows").get<int64_t>(), T = policy.at("tokens").get<int64_t>();
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < B * T; ++t) ids.push_back(static_cast<int32_t>(t / T % in_row));
  return {rank, B / in_row, in_row + 1, float_column(rank, policy.at("mask")), rank.tensor<int32_t>({B * T}, ids)};
}

Tensor weights_of(const Texts& texts, const std::string& mode, const Tensor& counts, double divisor) {
  Stream& s = texts.rank.stream;
  const Tensor weights = s.empty(texts.mask.shape(), DType::f64);
  double tokens = 0;
  for (const float counted : texts.mask.span<float>()) tokens += counted;
  const Tensor sequences = texts.rank.tensor<double>({1}, {4}), all = texts.rank.tensor<double>({1}, {tokens});
  if (mode == "dapo")
    kernels::sequence_weights(s, weights, texts.mask, all, {}, texts.tokens().sequences, 1);
  else if (mode == "grpo")
    kernels::sequence_weights(s, weights, texts.mask, sequences, counts, texts.tokens().sequences, 1);
  else
    kernels::sequence_weights(s, weights, texts.mask, sequences, {}, texts.tokens().sequences, 1 / divisor);
  return weights;
}

Var losses_of(Tape& tape, Rank& rank, const Json& logprobs) {
  std::vector<double> losses;
  for (const Json& value : logprobs) losses.push_back(-value.get<double>());
  return tape.input(rank.tensor<double>({static_cast<int64_t>(losses.size())}, losses));
}

// The gradient of the losses is minus that of the log probabilities.
void expect_gradient(const Tensor& of_losses, const Json& expected) {
  std::vector<double> of_logprobs;
  for (const double value : values(of_losses)) of_logprobs.push_back(-value);
  EXPECT_TRUE(testing::close(of_logprobs, expected.get<std::vector<double>>(), 1e-14, 1e-11));
}

TEST(PolicyLoss, HasTheLossesAndGradientsOfTrl) {
  const Json policy = golden("policy.json");
  for (const int64_t in_row : {1, 2, 4})
    for (const Json& one : policy.at("cases")) {
      SCOPED_TRACE(cat(one.at("loss_type").dump(), " ", one.at("level").dump(), ", in a row: ", in_row));
      Rank rank;
      const Texts texts = texts_of(rank, policy, in_row);
      const ops::ObjectiveTokens tokens = texts.tokens();
      Tape tape(rank.stream);
      const Var losses = losses_of(tape, rank, policy.at("logprobs"));
      const Tensor counts = ops::sequence_counts(rank.stream, tokens);
      const Tensor weights =
          weights_of(texts, one.at("loss_type").get<std::string>(), counts, one.at("loss_scale_factor").get<double>());
      const Tensor shares = weights_of(texts, "dapo", counts, 1);
      const auto kl = one.at("kl_loss_coef").get<double>();
      const ops::TermSums sums =
          ops::policy_loss(tape, losses,
                           {float_column(rank, policy.at("advantages")), float_column(rank, policy.at("old_logprobs")),
                            float_column(rank, policy.at("rollout_logprobs"))},
                           tokens, weights, shares, one.at("level") == "sequence" ? counts : Tensor(),
                           {one.at("clip_ratio_low").get<double>(), one.at("clip_ratio_high").get<double>(),
                            one.at("importance_sampling_cap").get<double>()});
      const Var divergence =
          ops::kl_loss(tape, losses, float_column(rank, policy.at("ref_logprobs")), tokens.mask, weights);
      EXPECT_NEAR(values(sums.loss.value())[0] + kl * values(divergence.value())[0], one.at("loss").get<double>(),
                  1e-11);
      if (one.contains("clip_fraction_low")) {
        EXPECT_NEAR(values(sums.figures[kernels::policy_term::clipped_low - 1])[0],
                    one.at("clip_fraction_low").get<double>(), 1e-6);
        EXPECT_NEAR(values(sums.figures[kernels::policy_term::clipped_high - 1])[0],
                    one.at("clip_fraction_high").get<double>(), 1e-6);
      }
      tape.backward({{sums.loss, {}}, {divergence, rank.tensor<double>({1}, {kl})}});
      expect_gradient(tape.gradient(losses), one.at("gradient"));
    }
}

kernels::PreferenceOptions preference_of(const Json& one) {
  using Loss = kernels::PreferenceOptions::Loss;
  const auto type = one.at("loss_type").get<std::string>();
  return {.beta = one.at("beta").get<double>(),
          .label_smoothing = one.at("label_smoothing").get<double>(),
          .loss = type == "robust"  ? Loss::robust
                  : type == "hinge" ? Loss::hinge
                  : type == "ipo"   ? Loss::ipo
                                    : Loss::sigmoid,
          .averages = type == "sigmoid_norm" || type == "ipo",
          .sft_weight = one.at("sft_weight").get<double>()};
}

TEST(PreferenceLoss, HasTheLossesAndGradientsOfTrl) {
  const Json policy = golden("policy.json"), preference = golden("preference.json");
  for (const int64_t in_row : {2, 4})
    for (const Json& one : preference.at("cases")) {
      SCOPED_TRACE(cat(one.at("loss_type").dump(), ", in a row: ", in_row));
      Rank rank;
      const Texts texts = texts_of(rank, policy, in_row);
      const ops::ObjectiveTokens tokens = texts.tokens();
      Tape tape(rank.stream);
      const Var losses = losses_of(tape, rank, policy.at("logprobs"));
      const Tensor counts = ops::sequence_counts(rank.stream, tokens);
      const Tensor reference =
          one.at("with_reference").get<bool>() ? float_column(rank, policy.at("ref_logprobs")) : Tensor();
      const ops::TermSums sums = ops::preference_loss(tape, losses, reference, tokens,
                                                      weights_of(texts, "grpo", counts, 1), counts, preference_of(one));
      EXPECT_NEAR(values(sums.loss.value())[0], one.at("loss").get<double>(), 1e-12);
      size_t figure = 0;
      for (const char* name : {"accuracy", "margin", "chosen", "rejected"})
        EXPECT_NEAR(values(sums.figures[figure++])[0], one.at(name).get<double>(), 1e-12) << name;
      tape.backward({{sums.loss, {}}});
      expect_gradient(tape.gradient(losses), one.at("gradient"));
    }
}

// A chosen text whose rejected one has no token to learn from is no pair.
TEST(PreferenceLoss, LeavesOutTextsWithoutAPartner) {
  Rank rank;
  Tape tape(rank.stream);
  const ops::ObjectiveTokens tokens{rank.tensor<float>({4}, {1, 1, 0, 1}),
                                    {rank.tensor<int32_t>({4}, {0, 0, 1, 2}), 1, 3}};
  const Var losses = tape.input(rank.tensor<double>({4}, {1, 2, 3, 4}));
  const Tensor counts = ops::sequence_counts(rank.stream, tokens);
  const ops::TermSums sums = ops::preference_loss(tape, losses, rank.tensor<float>({4}, {0, 0, 0, 0}), tokens,
                                                  rank.tensor<double>({4}, {1, 1, 0, 1}), counts, {});
  EXPECT_EQ(values(sums.loss.value()), std::vector<double>{0});
  tape.backward({{sums.loss, {}}});
  EXPECT_EQ(values(tape.gradient(losses)), std::vector<double>(4, 0));
}

TEST(ObjectiveOps, GradientsMatchDifferences) {
  const Json policy = golden("policy.json");
  Rank rank;
  const Texts texts = texts_of(rank, policy, 2);
  const ops::ObjectiveTokens tokens = texts.tokens();
  const Tensor counts = ops::sequence_counts(rank.stream, tokens), weights = weights_of(texts, "grpo", counts, 1),
               reference = float_column(rank, policy.at("ref_logprobs"));
  const ops::PolicyColumns columns{
      float_column(rank, policy.at("advantages")), float_column(rank, policy.at("old_logprobs")), {}};
  Tape constants(rank.stream);
  const Tensor losses = losses_of(constants, rank, policy.at("logprobs")).value();
  for (const bool of_sequences : {false, true})
    gradcheck(rank, "policy_loss",
              [&](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::policy_loss(tape, in[0], columns, tokens, weights, weights,
                                                    of_sequences ? counts : Tensor(), {})
                                       .loss};
              },
              {losses});
  gradcheck(rank, "kl_loss",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::kl_loss(tape, in[0], reference, tokens.mask, weights)};
            },
            {losses});
  gradcheck(rank, "preference_loss",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::preference_loss(tape, in[0], reference, tokens, weights, counts, {}).loss};
            },
            {losses});
  using Loss = kernels::PreferenceOptions::Loss;
  for (const Loss loss : {Loss::robust, Loss::hinge, Loss::ipo})
    gradcheck(rank, "preference_loss",
              [&](Tape& tape, const std::vector<Var>& in) {
                const kernels::PreferenceOptions options{0.4, 0.2, loss, loss != Loss::hinge, /*sft_weight=*/0.3};
                return std::vector{ops::preference_loss(tape, in[0], reference, tokens, weights, counts, options).loss};
              },
              {losses});
}

}  // namespace
}  // namespace witan
