// tests/train/step/features/expert_pools_test.cpp runs whole steps in several passes.
#include "witan/moe/dispatchers/receive_buffers.h"

#include "moe/moe_support.h"
#include "support/gradcheck.h"
#include "witan/moe/dispatchers/dispatch.h"

namespace witan {
namespace {

using testing::Alone;
using testing::gradcheck;
using testing::random_ids;
using testing::Rank;
using testing::values;

constexpr int64_t kTokens = 5, kTopk = 2, kExperts = 4, kWidth = 3;

TEST(ReceiveBuffers, HoldAtLeastOneExpertsRows) {
  Rank rank;
  const ReceiveBuffers even(rank.stream, 1), wide(rank.stream, 1.5), huge(rank.stream, 100);
  EXPECT_EQ(even.rows(100, 2, 1, 100), 200);
  EXPECT_EQ(wide.rows(100, 2, 2, 100), 300);
  EXPECT_EQ(huge.rows(100, 2, 2, 100), 400) << "all that comes";
  EXPECT_EQ(even.rows(100, 2, 8, 100), 800) << "an expert of all tokens of all ranks";
  EXPECT_EQ(even.rows(100, 2, 8, 10), 200);
  EXPECT_EQ(even.rows(0, 2, 8, 0), 1);
}

TEST(ReceiveBuffers, PartsHoldAMultipleOfTheBalancedLoad) {
  Rank rank;
  ReceiveBuffers buffers(rank.stream, 0, 1.5);
  EXPECT_TRUE(buffers.in_parts());
  EXPECT_FALSE(buffers.bounds_buffers());
  EXPECT_EQ(buffers.part_rows(100, 2, 4, 2, 100), 75);
  EXPECT_EQ(buffers.part_rows(5, 1, 2, 4, 5), 4) << "rounded up";
  EXPECT_EQ(buffers.part_rows(100, 2, 2, 1, 100), 100) << "a token visits an expert once";
  EXPECT_EQ(buffers.part_rows(100, 2, 4, 2, 10), 20) << "experts keep their capacity";
  EXPECT_EQ(buffers.part_rows(0, 2, 4, 2, 0), 1);
  EXPECT_EQ(buffers.rows(100, 2, 4, 100), 800) << "all that comes";
  buffers.divide(1);
  EXPECT_FALSE(buffers.bounds());
  EXPECT_EQ(buffers.part_rows(100, 2, 4, 2, 100), 0);
  buffers.restore();
  EXPECT_TRUE(buffers.in_parts());
  ReceiveBuffers without(rank.stream, 1.5);
  without.restore();
  EXPECT_FALSE(without.in_parts());
  EXPECT_TRUE(without.bounds());
}

// Several passes give the bits of a single pass, forward and backward.
TEST(ReceiveBuffers, SeveralPassesGiveTheBitsOfOne) {
  Rank rank;
  Alone alone;
  const Tensor x = rank.normal({kTokens, kWidth}, DType::f64, "x"),
               weights = rank.normal({kTokens, kTopk}, DType::f64, "weights");
  for (const int64_t passes : {1, 2, 4}) {
    ReceiveBuffers buffers(rank.stream, 1);
    buffers.divide(passes);
    const auto run = [&](Tape& tape, const std::vector<Var>& in) {
      const Routing routing = testing::routing_of(rank, random_ids(kTokens, kTopk, kExperts, "ids"), kTopk, kExperts,
                                                  tape.constant(weights));
      const auto pass = [&](Tape& on, const Var& rows, const Routing& part) {
        const DispatchMap map = make_dispatch_map(on.stream(), part, alone);
        return combine(on, dispatch(on, rows, part.weights, map).rows, map);
      };
      return std::vector{buffers.pass(tape, in[0], routing, alone, {}, pass)};
    };
    gradcheck(rank, "one_row_each", run, {x});
    gradcheck(rank, "sum_of_each", run, {x});
    Tape tape(rank.stream, Tape::Mode::off);
    const auto passed = values(run(tape, {tape.constant(x)})[0].value());
    const auto given = values(x);
    for (size_t i = 0; i < given.size(); ++i) EXPECT_EQ(passed[i], given[i] + given[i]) << passes << " passes";
  }
}

}  // namespace
}  // namespace witan
