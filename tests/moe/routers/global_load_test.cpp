// Compares the loss of the global batch's load with Megatron-LM's own code (tests/golden/moe/make_global_balance.py).
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/gradcheck.h"
#include "support/module.h"
#include "support/rank.h"
#include "support/thread_world.h"
#include "witan/base/files/file.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/moe/routers/balance.h"
#include "witan/moe/routers/route.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

using kernels::Scores;
using testing::close;
using testing::Rank;
using testing::values;
using Over = BalanceLoss::Over;
using Doubles = std::vector<double>;

const char* const kGlobalLoss = "global_load_balancing_loss";

// The losses of two ranks with two micro-batches each, which are 1 if the load is balanced, and their gradients. A
// rank's loss is Megatron-LM's share times the number of ranks.
TEST(GlobalLoad, MatchesMegatronsLossInFloat64) {
  const auto golden = nlohmann::json::parse(
      read_file(std::filesystem::path(WITAN_SOURCE_DIR) / "tests/golden/moe/global_balance.json"));
  const int64_t T = golden["tokens"], E = golden["experts"], K = golden["topk"], rounds = golden["rounds"];
  const int ranks = golden["ranks"];
  testing::on_ranks(ranks, [&](testing::ThreadRank& rank) {
    const auto group = rank.everyone();
    GlobalLoad load(rank.stream, 1, E, rounds, *group);
    for (int64_t m = 0; m < rounds; ++m) {
      const int64_t number = rank.rank * rounds + m;
      Tape tape(rank.stream);
      const Var logits =
          tape.input(rank.tensor<double>({T, E}, golden["logits"][static_cast<size_t>(number)].get<Doubles>()));
      const Balance balance{
          {Over::global_batch}, 1, [&](const Tensor& all, const Tensor&) { return load.add(tape, 0, number, all); }};
      const Routing routing = ops::route(tape, logits, {K, Scores::softmax}, nullptr, balance);
      const Var& loss = routing.record.loss(kBalanceLoss);
      const Tensor sum = rank.tensor<double>({1}, values(loss.value()));
      group->all_reduce(rank.stream, sum);
      EXPECT_NEAR(sum.data<double>()[0] / ranks, golden["losses"][static_cast<size_t>(m)].get<double>(), 1e-13);
      tape.backward({{loss, rank.tensor<double>({1}, {1.0 / ranks})}});
      EXPECT_TRUE(close(values(tape.gradient(logits)), golden["gradient"][static_cast<size_t>(number)].get<Doubles>(),
                        1e-15, 1e-11))
          << "micro-batch " << number;
    }
  });
}

// The load of earlier micro-batches is a constant for the gradient.
TEST(GlobalLoad, GradientsMatchDifferences) {
  Rank rank;
  const Tensor before = rank.tensor<int64_t>({5}, {7, 0, 1, 3, 9});
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::sigmoid})
    testing::gradcheck(rank, "router",
                       [&](Tape& tape, const std::vector<Var>& in) {
                         const Balance balance{{Over::micro_batch, Over::sequence, Over::global_batch},
                                               2,
                                               [&](const Tensor& counts, const Tensor&) {
                                                 const Tensor sum = rank.stream.empty_like(counts);
                                                 kernels::add(rank.stream, sum, before, counts);
                                                 return sum;
                                               }};
                         const RouterRecord record = ops::route(tape, in[0], {2, scores}, nullptr, balance).record;
                         return std::vector{record.loss(kBalanceLoss), record.loss("seq_load_balancing_loss"),
                                            record.loss(kGlobalLoss)};
                       },
                       {rank.normal({6, 5}, DType::f64, "logits", 2)});
}

// E sum_e f_e P_e with the shares f of the buffer's counts, which include the step's own assignments.
TEST(GlobalLoad, IsKeptInTheRoutersBuffer) {
  Rank rank;
  const int64_t T = 9, E = 4, D = 6;
  MoeConfig config;
  config.num_experts = E;
  config.moe_router_load_balancing_type = "global_aux_loss";
  const auto router =
      make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 1, .path = "router"}, config, D);
  ASSERT_EQ(router->buffers().size(), 1U);
  Buffer& load = *router->buffers()[0];
  EXPECT_EQ(load.spec().name, "router.global_tokens_per_expert");
  EXPECT_EQ(load.value().to_vector<int64_t>(), std::vector<int64_t>(E, 1)) << "even before the first step";
  const std::vector<int64_t> last = {5, 0, 1, 2};
  std::ranges::copy(last, load.value().data<int64_t>());
  load.bind_share(rank.stream.zeros({E}, DType::i64));
  const Tensor x = rank.normal({T, D}, DType::f64, "x");
  Tape tape(rank.stream);
  const Routing routing = router->forward(tape, tape.constant(x));
  const auto w = values(router->parameters()[0]->value()), in = values(x);
  double expected = 0;
  for (size_t t = 0; t < size_t(T); ++t) {
    std::vector<double> p(E);
    double all = 0;
    for (size_t e = 0; e < size_t(E); ++e) {
      double logit = 0;
      for (size_t d = 0; d < size_t(D); ++d) logit += in[t * D + d] * w[e * D + d];
      all += p[e] = std::exp(logit);
    }
    for (size_t e = 0; e < size_t(E); ++e) expected += double(E) * double(last[e]) / 8 * p[e] / all / double(T);
  }
  EXPECT_NEAR(routing.record.loss(kBalanceLoss).value().data<double>()[0], expected, 1e-13);
  EXPECT_EQ(load.share().to_vector<int64_t>(), routing.counts.to_vector<int64_t>());
  EXPECT_EQ(load.value().to_vector<int64_t>(), last);
}

// Steps begin anew, evaluations count nothing, and recomputation finds the same load.
TEST(GlobalLoad, IsResetEveryStep) {
  Rank rank;
  testing::Alone alone;
  GlobalLoad load(rank.stream, 2, 3, 2, alone);
  const auto added = [&](Tape& tape, int64_t router, int64_t number, const std::vector<int64_t>& counts) {
    return load.add(tape, router, number, rank.tensor<int64_t>({3}, counts)).to_vector<int64_t>();
  };
  using Counts = std::vector<int64_t>;
  for (int step = 0; step < 2; ++step) {
    Tape first(rank.stream), second(rank.stream), off(rank.stream, Tape::Mode::off);
    EXPECT_EQ(added(first, 0, 6, {1, 2, 3}), (Counts{1, 2, 3}));
    EXPECT_EQ(added(first, 1, 6, {5, 0, 0}), (Counts{5, 0, 0}));
    EXPECT_EQ(added(second, 0, 7, {1, 0, 1}), (Counts{2, 2, 4}));
    EXPECT_EQ(added(off, 0, 6, {9, 9, 9}), (Counts{1, 2, 3}));
    EXPECT_EQ(added(second, 1, 7, {0, 1, 0}), (Counts{5, 1, 0}));
  }
}

}  // namespace
}  // namespace witan
