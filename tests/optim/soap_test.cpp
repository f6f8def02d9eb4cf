// Compares with the original SOAP (tests/golden/optim/make_soap.py), and tests state and errors.

#include <algorithm>
#include <cmath>

#include "optim/preconditioned_support.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::CountedParameter;
using testing::make_step;
using testing::Rank;

OptimizerConfig soap_config() {
  OptimizerConfig config;
  config.optimizer = "soap";
  config.adam_beta1 = 0.8;
  config.adam_beta2 = 0.95;
  config.adam_eps = 1e-6;
  config.shampoo_beta = 0.9;
  config.weight_decay = 0.0625;
  config.max_preconditioner_dim = 5;
  config.precondition_frequency = 3;
  return config;
}

// With bases on both sides, on one, and on none.
TEST(Soap, MatchesTheOriginal) {
  EXPECT_EQ(testing::compare_updates(soap_config(), {{"matrix", {4, 4}}, {"long", {7, 3}}, {"vector", {5}}},
                                     testing::golden_updates("soap.tsv"), "soap", 1e-8),
            15);
}

TEST(Soap, KeepsBasesAsStateOfTheMatrix) {
  Rank rank;
  CountedParameter longer(rank, "long", {7, 3}), vector(rank, "vector", {5});
  std::vector<std::string> kept;
  make_optimizer(soap_config(), rank.stream, {longer.shard(), vector.shard()})
      ->visit([&](const OptimizerTensor& state) { kept.push_back(cat(state.name, " ", state.parameter.shape)); });
  EXPECT_EQ(kept, (std::vector<std::string>{"soap.m/long [7, 3]", "soap.v/long [21]", "soap.factors/long [9]",
                                            "soap.bases/long [9]", "soap.m/vector [5]", "soap.v/vector [5]"}));
}

// Gradients that differ by noise, of rank one or two, with rows that start later. The update must be continuous
// whatever a factor's rank, so its difference is proportional to the noise. In directions that the gradients lack, Adam
// computes m / (sqrt(v) + eps) from noise only, which amplifies it by up to lr / eps per update; 4 is for several
// updates. Rounding counts as noise of 1e-13. A basis determined by rounding would differ by 1e-2 at any noise.
TEST(Soap, DoesNotAmplifyRoundingOfRankDeficientGradients) {
  const double growth = 4 * 0.125 / soap_config().adam_eps;  // the learning rate of make_step() is 0.125
  constexpr double kRoundings = 1e-13;
  const auto values_after_updates = [](double noise, int64_t rank, int64_t frequency) {
    Rank rank_of_test;
    CountedParameter matrix(rank_of_test, "matrix", {7, 11});
    OptimizerConfig config = soap_config();
    config.max_preconditioner_dim = 20;
    config.precondition_frequency = frequency;
    const auto soap = make_optimizer(config, rank_of_test.stream, {matrix.shard()});
    for (int64_t step = 1; step <= 12; ++step) {
      for (int64_t i = 0; i < 7 * 11; ++i) {
        const auto r = static_cast<double>(i / 11), c = static_cast<double>(i % 11), s = static_cast<double>(step);
        double value = 0;
        for (double k = 1; k <= static_cast<double>(rank); ++k)
          value += std::sin(1.7 * s * k + 2.3 * r * k) * std::cos(0.9 * c * k + 3.1 * s + k);
        if (step <= 5 && i / 11 >= 4) value = 0;
        CountedParameter::at(matrix.parameter.gradient(), i) = value * (1 + noise * std::sin(s + 12.9 * r + 78.2 * c));
      }
      make_step(rank_of_test, *soap, step);
    }
    return testing::values(matrix.parameter.value());
  };
  for (const int64_t rank : {1, 2})
    for (const int64_t frequency : {1, 3})
      for (const double noise : {1e-15, 1e-12, 1e-9}) {
        const auto found = values_after_updates(noise, rank, frequency),
                   expected = values_after_updates(0, rank, frequency);
        double apart = 0;
        for (size_t i = 0; i < found.size(); ++i) apart = std::max(apart, std::abs(found[i] - expected[i]));
        EXPECT_LE(apart, growth * (noise + kRoundings))
            << "rank " << rank << ", bases every " << frequency << ", noise " << noise;
      }
}

TEST(Soap, ASkippedStepChangesNothing) {
  Rank rank;
  CountedParameter matrix(rank, "matrix", {4, 4});
  const auto soap = make_optimizer(soap_config(), rank.stream, {matrix.shard()});
  for (int64_t step = 1; step <= 6; ++step) {
    matrix.fill_gradient(step);
    make_step(rank, *soap, step);
  }
  const auto before = testing::values_and_state(matrix.parameter, *soap);
  CountedParameter::at(matrix.parameter.gradient(), 4) = std::nan("");
  make_step(rank, *soap, 7, true);  // a step that computes bases
  EXPECT_EQ(testing::values_and_state(matrix.parameter, *soap), before);
}

TEST(Soap, RefusesFactorsThatNeverDecay) {
  OptimizerConfig config = soap_config();
  config.shampoo_beta = 1;
  EXPECT_THAT(test::message_of<ConfigError>([&] { config.validate(); }), ::testing::HasSubstr("shampoo_beta = 1"));
}

}  // namespace
}  // namespace witan
