// Against SOAP itself (tests/golden/optim/make_soap.py), and what it keeps.
#include "witan/optim/soap.h"

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

// On both sides, on one, and on none.
TEST(Soap, MakesWhatTheOriginalMakes) {
  EXPECT_EQ(testing::compare_updates(soap_config(), {{"matrix", {4, 4}}, {"long", {7, 3}}, {"vector", {5}}},
                                     testing::golden_updates("soap.tsv"), "soap", 1e-8),
            15);
}

TEST(Soap, KeepsWhatIsOfTheBasesAsStateOfTheMatrix) {
  Rank rank;
  CountedParameter longer(rank, "long", {7, 3}), vector(rank, "vector", {5});
  std::vector<std::string> kept;
  make_optimizer(soap_config(), rank.stream, {longer.shard(), vector.shard()})
      ->visit([&](const OptimizerTensor& state) { kept.push_back(cat(state.name, " ", state.parameter.shape)); });
  EXPECT_EQ(kept, (std::vector<std::string>{"soap.m/long [7, 3]", "soap.v/long [21]", "soap.factors/long [9]",
                                            "soap.bases/long [9]", "soap.m/vector [5]", "soap.v/vector [5]"}));
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
  make_step(rank, *soap, 7, true);  // at which bases are due
  EXPECT_EQ(testing::values_and_state(matrix.parameter, *soap), before);
}

TEST(Soap, RefusesFactorsThatWouldNeverForget) {
  OptimizerConfig config = soap_config();
  config.shampoo_beta = 1;
  EXPECT_THAT(test::message_of<ConfigError>([&] { config.validate(); }), ::testing::HasSubstr("shampoo_beta = 1"));
}

}  // namespace
}  // namespace witan
