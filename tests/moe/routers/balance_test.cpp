// Compares balance losses and quantile balancing with Megatron-LM's own functions (tests/golden/moe/make_balance.py).
#include "witan/moe/routers/balance.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/gradcheck.h"
#include "support/rank.h"
#include "support/thread_world.h"
#include "witan/base/files/file.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/selection.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

using kernels::Scores;
using testing::close;
using testing::Rank;
using testing::values;
using Over = BalanceLoss::Over;
using Doubles = std::vector<double>;

const char* const kSequenceLoss = "seq_load_balancing_loss";

nlohmann::json golden() {
  return nlohmann::json::parse(read_file(std::filesystem::path(WITAN_SOURCE_DIR) / "tests/golden/moe/balance.json"));
}

TEST(BalanceLosses, MatchMegatronInFloat64) {
  Rank rank;
  const auto expected = golden();
  const int64_t B = expected["sequences"], S = expected["length"], E = expected["experts"], K = expected["topk"];
  const auto check = [&](const char* name, const char* value, const char* gradient) {
    Tape tape(rank.stream);
    const Var logits = tape.input(rank.tensor<double>({B * S, E}, expected["logits"].get<Doubles>()));
    const Routing routing = ops::route(tape, logits, {K, Scores::softmax_of_chosen}, nullptr,
                                       Balance{{Over::micro_batch, Over::sequence}, B});
    EXPECT_EQ(routing.counts.to_vector<int64_t>()[4], 0) << "an expert without tokens";
    const Var& loss = routing.record.loss(name);
    EXPECT_NEAR(loss.value().data<double>()[0], expected[value].get<double>(), 1e-13) << name;
    tape.backward({{loss, {}}});
    EXPECT_TRUE(close(values(tape.gradient(logits)), expected[gradient].get<Doubles>(), 1e-15, 1e-11)) << name;
  };
  check(kBalanceLoss, "micro_batch", "micro_batch_gradient");
  check(kSequenceLoss, "sequence", "sequence_gradient");
  check(kZLoss, "z", "z_gradient");
}

TEST(BalanceLosses, SeveralAreTheSumOfEach) {
  Rank rank;
  const int64_t B = 3, S = 4, E = 5, K = 2;
  const auto of = [&](const Balance& balance, const std::vector<std::pair<const char*, double>>& terms) {
    Tape tape(rank.stream);
    const Var logits = tape.input(rank.normal({B * S, E}, DType::f64, "logits", 2));
    const Routing routing = ops::route(tape, logits, {K, Scores::sigmoid}, nullptr, balance);
    std::vector<std::pair<Var, Tensor>> roots;
    for (const auto& [name, weight] : terms)
      roots.emplace_back(routing.record.loss(name), rank.tensor<double>({1}, {weight}));
    tape.backward(roots);
    return values(tape.gradient(logits));
  };
  const Balance both{{Over::micro_batch, Over::sequence}, B};
  Doubles sum = of({{Over::micro_batch}, B}, {{kBalanceLoss, 0.5}});
  const Doubles apart = of({{Over::sequence}, B}, {{kBalanceLoss, 2}});
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += apart[i];
  EXPECT_TRUE(close(of(both, {{kBalanceLoss, 0.5}, {kSequenceLoss, 2}}), sum, 1e-15, 1e-12));
  EXPECT_TRUE(close(of(both, {{kSequenceLoss, 2}}), apart, 1e-15, 1e-12)) << "one of two without a gradient";
}

TEST(BalanceLosses, GradientsOfSeveralMatchDifferences) {
  Rank rank;
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax, Scores::sigmoid})
    testing::gradcheck(rank, "router",
                       [scores](Tape& tape, const std::vector<Var>& in) {
                         const Routing routing = ops::route(tape, in[0], {2, scores}, nullptr,
                                                            Balance{{Over::micro_batch, Over::sequence}, 2});
                         return std::vector{routing.weights, routing.record.loss(kBalanceLoss),
                                            routing.record.loss(kSequenceLoss), routing.record.loss(kZLoss)};
                       },
                       {rank.normal({6, 5}, DType::f64, "logits", 2)});
}

// Ranks that hold parts of the sequences get the losses of a single rank.
TEST(BalanceLosses, RanksGetTheLossesOfOneRank) {
  Rank rank;
  const int64_t B = 2, S = 12, E = 5, K = 2;
  const Balance both{{Over::micro_batch, Over::sequence}, B};
  const Doubles logits = values(rank.normal({B * S, E}, DType::f64, "logits", 2));
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<double>({B * S, E}, logits));
  const Routing whole = ops::route(tape, x, {K, Scores::softmax}, nullptr, both);
  tape.backward({{whole.record.loss(kBalanceLoss), {}}, {whole.record.loss(kSequenceLoss), {}}});
  const Doubles gradient = values(tape.gradient(x));
  testing::on_ranks(3, [&](testing::ThreadRank& part) {
    const auto group = part.everyone("context");
    const int64_t own = S / 3;
    Doubles mine, expected;
    for (int64_t b = 0; b < B; ++b) {
      const int64_t begin = (b * S + part.rank * own) * E, end = begin + own * E;
      mine.insert(mine.end(), logits.begin() + begin, logits.begin() + end);
      expected.insert(expected.end(), gradient.begin() + begin, gradient.begin() + end);
    }
    Tape on(part.stream);
    const Var in = on.input(part.tensor<double>({B * own, E}, mine));
    const Routing routing = ops::route(on, in, {K, Scores::softmax}, group.get(), both);
    for (const char* loss : {kBalanceLoss, kSequenceLoss})
      EXPECT_TRUE(close(routing.record.loss(loss).value(), whole.record.loss(loss).value(), 0, 1e-13)) << loss;
    on.backward({{routing.record.loss(kBalanceLoss), {}}, {routing.record.loss(kSequenceLoss), {}}});
    EXPECT_TRUE(close(values(on.gradient(in)), expected, 1e-15, 1e-12));
  });
}

TEST(BalanceLosses, HaveMegatronsNames) {
  MoeConfig config;
  config.moe_router_load_balancing_type = "seq_aux_loss,aux_loss";
  config.moe_aux_loss_coeff = "0.001,0.01";
  const auto declared = declare_losses(config);
  ASSERT_EQ(declared.size(), 3u);
  EXPECT_EQ(declared[0].display_tag(), "load_balancing_loss");
  EXPECT_EQ(declared[0].loss_coefficient, 0.01);
  EXPECT_EQ(declared[1].display_tag(), "seq_load_balancing_loss");
  EXPECT_EQ(declared[1].loss_coefficient, 0.001);
}

// Three steps of two micro-batches: choices, quantiles and the resulting bias.
TEST(QuantileBalancing, MatchesMegatron) {
  Rank rank;
  const auto expected = golden();
  const int64_t T = expected["sequences"].get<int64_t>() * expected["length"].get<int64_t>(), E = expected["experts"],
                K = expected["topk"];
  const Tensor bias = rank.tensor<float>({E}, std::vector<float>(static_cast<size_t>(E))),
               step = rank.stream.zeros({kernels::kStepValues}, DType::f64);
  const auto expect_bias = [&](const Doubles& beta) {
    Doubles negated = values(bias);
    for (double& value : negated) value = -value;
    EXPECT_TRUE(close(negated, beta, 1e-7, 1e-6));
  };
  std::vector<int64_t> sums(static_cast<size_t>(E) + 1);
  for (const auto& micro_batch : expected["quantile"]) {
    if (sums.back() == 2) {
      kernels::update_quantile_bias(rank.stream, bias, rank.tensor<int64_t>({E + 1}, sums), step);
      sums.assign(sums.size(), 0);
    }
    expect_bias(micro_batch["beta"].get<Doubles>());
    const Tensor logits = rank.tensor<double>({T, E}, micro_batch["logits"].get<Doubles>()),
                 ids = rank.stream.empty({T, K}, DType::i32), margins = rank.poisoned({1, E, T}, DType::f64),
                 found = rank.stream.empty({E + 1}, DType::i64);
    kernels::choose_by_quantiles(rank.stream, ids, margins, logits, bias);
    kernels::quantile_sums(rank.stream, found, margins, K);
    EXPECT_EQ(ids.to_vector<int32_t>(), micro_batch["indices"].get<std::vector<int32_t>>());
    const auto in_units = found.to_vector<int64_t>();
    const auto quantiles = micro_batch["found"].get<Doubles>();
    for (size_t e = 0; e < quantiles.size(); ++e)
      EXPECT_NEAR(static_cast<double>(in_units[e]) / kernels::kQuantileUnit, quantiles[e], 1e-6);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += in_units[i];
  }
  kernels::update_quantile_bias(rank.stream, bias, rank.tensor<int64_t>({E + 1}, sums), step);
  expect_bias(expected["last_beta"].get<Doubles>());
}

}  // namespace
}  // namespace witan
