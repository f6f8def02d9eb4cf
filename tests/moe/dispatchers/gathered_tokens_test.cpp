#include "moe/moe_support.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "witan/moe/dispatchers/dispatch.h"

namespace witan {
namespace {

using testing::bind_gradients;
using testing::close;
using testing::gradients_of;
using testing::on_ranks;
using testing::random_ids;
using testing::routing_of;
using testing::rows_of_groups;
using testing::ThreadRank;
using testing::values;

constexpr int64_t kExperts = 4, kTopk = 2, kTokens = 7, kWidth = 3;

// Groups hold the same rows, in the same order, as those of an all-to-all, and know their source ranks.
TEST(GatheredTokens, FillTheBuffersOfAnAllToAll) {
  for (const int64_t capacity : {int64_t{0}, int64_t{2}})
    on_ranks(2, [capacity](ThreadRank& rank) {
      const auto group = rank.everyone("expert");
      Routing routing =
          routing_of(rank, random_ids(kTokens, kTopk, kExperts, cat("ids of ", rank.rank)), kTopk, kExperts);
      if (capacity > 0) routing = testing::limited(rank, routing, capacity);
      const DispatchMap sent = make_dispatch_map(rank.stream, routing, *group),
                        gathered = make_gathered_map(rank.stream, routing, *group);
      EXPECT_EQ(gathered.capacity, sent.capacity);
      EXPECT_EQ(gathered.tokens, 2 * kTokens);
      EXPECT_EQ(gathered.groups.expected_rows, sent.groups.expected_rows);
      for (const auto field :
           {&RowGroups::begin, &RowGroups::count, &RowGroups::source_begin, &RowGroups::source_count})
        EXPECT_EQ((gathered.groups.*field).to_vector<int64_t>(), (sent.groups.*field).to_vector<int64_t>());

      Tape tape(rank.stream);
      const Var x = tape.input(rank.own_normal({kTokens, kWidth}, DType::f64, "x")),
                weights = tape.input(rank.own_normal({kTokens, kTopk}, DType::f64, "weights"));
      const Dispatched there = dispatch(tape, x, weights, sent),
                       here = dispatch(tape, gather_tokens(tape, x, *group), gather_tokens(tape, weights, *group),
                                       gathered);
      EXPECT_EQ(rows_of_groups(here.rows.value(), gathered.groups), rows_of_groups(there.rows.value(), sent.groups));
      const auto as_matrix = [](const Var& of) { return of.value().reshape({of.size(0), 1}); };
      EXPECT_EQ(rows_of_groups(as_matrix(here.row_weights), gathered.groups),
                rows_of_groups(as_matrix(there.row_weights), sent.groups));
    });
}

TEST(GatheredTokens, AcceptExpertsWithNoneOrAll) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    const Routing routing = routing_of(rank, std::vector<int32_t>(kTokens, 2), 1, kExperts);
    const DispatchMap map = make_gathered_map(rank.stream, routing, *group);
    EXPECT_EQ(map.groups.count.to_vector<int64_t>(),
              rank.rank == 0 ? (std::vector<int64_t>{0, 0}) : (std::vector<int64_t>{2 * kTokens, 0}));
  });
}

struct Seen {
  std::vector<double> y, dx;
  std::vector<std::vector<double>> gradients;
};

Seen run(ThreadRank& rank, Group& group, const std::string& type, double capacity_factor) {
  MoeConfig config;
  config.num_experts = kExperts;
  config.moe_router_topk = kTopk;
  config.moe_token_dispatcher_type = type;
  config.moe_expert_capacity_factor = capacity_factor;
  config.moe_expert_add_bias = true;
  MlpConfig mlp;
  mlp.ffn_hidden_size = 5;
  Moe moe({.stream = rank.stream,
           .dtype = DType::f64,
           .init_std = 0.5,
           .output_init_std = 0.5,
           .expert_ranks = group.size(),
           .expert_rank = group.rank(),
           .path = "moe"},
          config, mlp, kWidth, group);
  bind_gradients(rank.stream, moe);
  Tape tape(rank.stream);
  const Var x = tape.input(rank.own_normal({1, kTokens, kWidth}, DType::f64, "x"));
  const Var y = moe.forward(tape, x, false).y;
  tape.backward({{y, rank.own_normal({1, kTokens, kWidth}, DType::f64, "dy")}});
  return {values(y.value()), values(tape.gradient(x)), gradients_of(moe)};
}

TEST(AllGatherDispatcher, EqualsAllToAll) {
  for (const int ranks : {1, 2, 4})
    for (const double capacity_factor : {0.0, 0.75})
      on_ranks(ranks, [&](ThreadRank& rank) {
        const auto group = rank.everyone("expert");
        const Seen sent = run(rank, *group, "alltoall", capacity_factor),
                   gathered = run(rank, *group, "allgather", capacity_factor);
        EXPECT_TRUE(close(gathered.y, sent.y, 1e-12, 1e-12));
        EXPECT_TRUE(close(gathered.dx, sent.dx, 1e-12, 1e-12));
        ASSERT_EQ(gathered.gradients.size(), sent.gradients.size());
        for (size_t i = 0; i < sent.gradients.size(); ++i)
          EXPECT_TRUE(close(gathered.gradients[i], sent.gradients[i], 1e-12, 1e-12)) << "parameter " << i;
      });
}

}  // namespace
}  // namespace witan
