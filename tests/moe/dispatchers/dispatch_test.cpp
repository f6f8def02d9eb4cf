#include "witan/moe/dispatchers/dispatch.h"

#include "moe/moe_support.h"
#include "support/adjoint.h"
#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/thread_peers.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::Alone;
using testing::close;
using testing::gradcheck;
using testing::on_ranks;
using testing::random_ids;
using testing::Rank;
using testing::routing_of;
using testing::rows_of_groups;
using testing::ThreadRank;
using testing::values;

constexpr int64_t kTokens = 5, kTopk = 2, kExperts = 4, kWidth = 3;

DispatchMap small_map(Rank& rank, Group& group) {
  return make_dispatch_map(rank.stream, routing_of(rank, random_ids(kTokens, kTopk, kExperts, "ids"), kTopk, kExperts),
                           group);
}

// Experts keep two of their assignments; the others have no row.
DispatchMap limited_map(Rank& rank, Group& group) {
  const Routing all = routing_of(rank, {0, 1, 0, 1, 0, 2, 0, 3, 1, 0}, kTopk, kExperts);
  return make_dispatch_map(rank.stream, testing::limited(rank, all, 2), group);
}

// A map whose rows travel to the same rank, and arrive in another order than the experts'. make_dispatch_map() never
// makes one, but finite differences, which perturb one input of one rank, need the ops between ranks on a single rank.
DispatchMap travelling_map(Rank& rank, Group& group) {
  DispatchMap map = small_map(rank, group);
  map.group = &group;
  map.send_counts = map.recv_counts = rank.tensor<int64_t>({1}, {kTokens * kTopk});
  map.place = rank.tensor<int64_t>({kTokens * kTopk}, {3, 0, 9, 1, 7, 2, 8, 5, 4, 6});
  return map;
}

TEST(Dispatch, GradientsMatchDifferences) {
  Rank rank;
  Alone alone;
  const Tensor x = rank.normal({kTokens, kWidth}, DType::f64, "x"),
               weights = rank.normal({kTokens, kTopk}, DType::f64, "weights");
  for (const DispatchMap& map : {small_map(rank, alone), limited_map(rank, alone), travelling_map(rank, alone)}) {
    const auto rows = [&](Tape& tape, const std::vector<Var>& in) {
      return std::vector{dispatch(tape, in[0], tape.constant(weights), map).rows};
    };
    const auto row_weights = [&](Tape& tape, const std::vector<Var>& in) {
      return std::vector{dispatch(tape, tape.constant(x), in[0], map).row_weights};
    };
    gradcheck(rank, "copy_to_assignments", rows, {x});
    gradcheck(rank, "sort_weights", row_weights, {weights});
    if (map.group) gradcheck(rank, "to_expert_order", rows, {x});
  }
}

TEST(Combine, GradientsMatchDifferences) {
  Rank rank;
  Alone alone;
  for (const DispatchMap& map : {small_map(rank, alone), limited_map(rank, alone), travelling_map(rank, alone)}) {
    const Tensor pool = rank.normal({map.capacity, kWidth}, DType::f64, "pool");
    const auto sums = [&](Tape& tape, const std::vector<Var>& in) { return std::vector{combine(tape, in[0], map)}; };
    gradcheck(rank, "sum_assignments", sums, {pool});
    if (map.group) gradcheck(rank, "to_arrival_order", sums, {pool});
  }
}

TEST(Dispatch, CombineWithUnitWeightsGivesKTimesX) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [T, K, E] : std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {1, 2, 8}, {0, 2, 4}, {77, 4, 5}}) {
      Rank rank;
      Alone alone;
      Tape tape(rank.stream);
      const DispatchMap map = make_dispatch_map(rank.stream, routing_of(rank, random_ids(T, K, E, "ids"), K, E), alone);
      EXPECT_EQ(map.capacity, T * K);
      EXPECT_EQ(map.groups.expected_rows, T * K);
      const Var x = tape.input(rank.normal({T, 9}, dtype, "x")),
                weights = tape.constant(rank.normal({T, K}, accumulator(dtype), "weights"));
      const Var y = combine(tape, dispatch(tape, x, weights, map).rows, map);
      auto expected = values(x.value());
      for (double& value : expected) value *= static_cast<double>(K);
      EXPECT_TRUE(close(values(y.value()), expected, 1e-15, 1e-15 + (dtype == DType::bf16 ? 4e-3 : 1e-7)));
    }
}

TEST(Dispatch, AcceptsEmptyAndHotExperts) {
  Rank rank;
  Alone alone;
  Tape tape(rank.stream);
  const DispatchMap map = make_dispatch_map(rank.stream, routing_of(rank, {2, 2, 2, 2}, 1, 4), alone);
  EXPECT_EQ(map.groups.count.to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 4, 0}));
  EXPECT_EQ(map.groups.begin.to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 0, 4}));
  const Var x = tape.input(rank.normal({4, 6}, DType::f32, "x"));
  const Dispatched out = dispatch(tape, x, tape.constant(rank.normal({4, 1}, DType::f32, "w")), map);
  EXPECT_EQ(values(out.rows.value()), values(x.value())) << "one expert gets the tokens in their order";
  EXPECT_EQ(values(out.row_weights.value()), values(rank.normal({4}, DType::f32, "w")));
}

TEST(Dispatch, DroppedAssignmentsAreNeitherSentNorSummed) {
  Rank rank;
  Alone alone;
  Tape tape(rank.stream);
  const DispatchMap map = limited_map(rank, alone);
  EXPECT_EQ(map.capacity, kExperts * 2);
  EXPECT_EQ(map.groups.count.to_vector<int64_t>(), (std::vector<int64_t>{2, 2, 1, 1}));
  const Var x = tape.input(rank.tensor<double>({5, 1}, {1, 10, 100, 1000, 10000})),
            weights = tape.input(rank.normal({5, 2}, DType::f64, "w"));
  const Dispatched out = dispatch(tape, x, weights, map);
  EXPECT_EQ(rows_of_groups(out.rows.value(), map.groups), (std::vector<double>{1, 10, 1, 10, 100, 1000}));
  const Var y = combine(tape, out.rows, map);
  EXPECT_EQ(values(y.value()), (std::vector<double>{2, 20, 100, 1000, 0}));
  tape.backward({{y, {}}, {out.row_weights, {}}});
  EXPECT_EQ(values(tape.gradient(x)), (std::vector<double>{2, 2, 1, 1, 0}));
  EXPECT_EQ(values(tape.gradient(weights)), (std::vector<double>{1, 1, 1, 1, 0, 1, 0, 1, 0, 0}));
}

TEST(Dispatch, CapacityBoundsReceiveBuffers) {
  for (const auto& [capacity, rows] : std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {3, 6}, {12, 24}, {13, 26}})
    on_ranks(2, [&, most = capacity, rows = rows](ThreadRank& rank) {
      const auto group = rank.everyone("expert");
      const Routing all = routing_of(rank, random_ids(13, 2, 4, "ids"), 2, 4);
      const DispatchMap map = make_dispatch_map(rank.stream, testing::limited(rank, all, most), *group);
      EXPECT_EQ(map.capacity, 2 * rows) << "two experts here, for each of two ranks";
      EXPECT_EQ(map.source.size(0), std::min<int64_t>(4 * most, 26));
    });
}

TEST(Dispatch, ErrorsNameWrongShapes) {
  Rank rank;
  Alone alone;
  Tape tape(rank.stream);
  const DispatchMap map = small_map(rank, alone);
  const auto var = [&](const Shape& shape) { return tape.input(rank.normal(shape, DType::f32, "x")); };
  const auto said = [](auto&& call) { return test::message_of<ShapeError>(call); };
  EXPECT_EQ(said([&] { dispatch(tape, var({4, 3}), var({5, 2}), map); }), "dispatch: x must be [T=5, D], got [4, 3]");
  EXPECT_EQ(said([&] { dispatch(tape, var({5}), var({5, 2}), map); }), "dispatch: x must be [T=5, D], got [5]");
  EXPECT_EQ(said([&] {
              dispatch(tape, var({5, 3}), var({5, 3}), map);
            }),
            "dispatch: weights must be [T=5, K=2], got [5, 3]");
  EXPECT_EQ(said([&] { combine(tape, var({5, 3}), map); }), "combine: rows must be [capacity=10, D], got [5, 3]");
  MetaGroup three(3, 0, "expert");
  EXPECT_EQ(said([&] { small_map(rank, three); }), "dispatch: 4 experts are not divisible by 3 expert-parallel ranks");
}

// (ranks, K, E). The row of token t of rank r holds 1000 r + t, which identifies its origin.
class DispatchOnRanks : public ::testing::TestWithParam<std::tuple<int, int64_t, int64_t>> {};

TEST_P(DispatchOnRanks, RowsArriveByExpertThenSourceThenToken) {
  const auto [ranks, K, E] = GetParam();
  const int64_t T = 13, local = E / ranks;
  const auto ids_of = [&, K = K, E = E](int rank) { return random_ids(T, K, E, cat("ids ", rank)); };
  on_ranks(ranks, [&, K = K, E = E, n = ranks](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    Tape tape(rank.stream);
    const Tensor x = rank.stream.empty({T, 2}, DType::f32), weights = rank.stream.empty({T, K}, DType::f32);
    for (int64_t i = 0; i < T * 2; ++i) x.data<float>()[i] = static_cast<float>(1000 * rank.rank + i / 2);
    for (int64_t i = 0; i < T * K; ++i) weights.data<float>()[i] = static_cast<float>(1000 * rank.rank + i);
    const DispatchMap map = make_dispatch_map(rank.stream, routing_of(rank, ids_of(rank.rank), K, E), *group);
    const Var in = tape.input(x), in_weights = tape.input(weights);
    const Dispatched out = dispatch(tape, in, in_weights, map);

    std::vector<double> rows, row_weights;
    for (int64_t e = rank.rank * local; e < (rank.rank + 1) * local; ++e)
      for (int source = 0; source < n; ++source) {
        const auto ids = ids_of(source);
        for (int64_t i = 0; i < T * K; ++i) {
          if (ids[static_cast<size_t>(i)] != e) continue;
          rows.insert(rows.end(), 2, static_cast<double>(1000 * source + i / K));
          row_weights.push_back(static_cast<double>(1000 * source + i));
        }
      }
    EXPECT_LE(static_cast<int64_t>(row_weights.size()), map.capacity);
    EXPECT_EQ(rows_of_groups(out.rows.value(), map.groups), rows);
    EXPECT_EQ(rows_of_groups(out.row_weights.value(), map.groups), row_weights);

    const Var y = combine(tape, out.rows, map);
    auto expected = values(x);
    for (double& value : expected) value *= static_cast<double>(K);
    EXPECT_EQ(values(y.value()), expected) << "every copy returned";

    // With gradients of ones, each of the K copies returns one; undefined rows must not reach the inputs.
    tape.backward({{y, {}}, {out.row_weights, {}}});
    EXPECT_EQ(values(tape.gradient(in)), std::vector<double>(static_cast<size_t>(2 * T), static_cast<double>(K)));
    EXPECT_EQ(values(tape.gradient(in_weights)), std::vector<double>(static_cast<size_t>(T * K), 1.0));
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, DispatchOnRanks,
                         ::testing::Values(std::tuple{2, 1, 4}, std::tuple{2, 3, 4}, std::tuple{4, 2, 8},
                                           std::tuple{4, 4, 4}));

// <dispatch x, g> = <x, dispatch^T g> over all ranks, where dispatch^T is both the gradient of dispatch and combine.
TEST(Dispatch, IsAdjointToCombine) {
  const int64_t T = 11, K = 3, E = 8, D = 5;
  for (const auto& [ranks, capacity] :
       std::vector<std::pair<int, int64_t>>{{1, T}, {1, 3}, {2, T}, {2, 3}, {4, T}, {4, 3}}) {
    std::vector<double> forward(static_cast<size_t>(ranks)), backward(forward);
    on_ranks(ranks, [&, most = capacity](ThreadRank& rank) {
      const auto group = rank.everyone("expert");
      Tape tape(rank.stream);
      const Routing all = routing_of(rank, random_ids(T, K, E, cat("ids ", rank.rank)), K, E);
      const DispatchMap map = make_dispatch_map(rank.stream, testing::limited(rank, all, most), *group);
      const Var x = tape.input(rank.own_normal({T, D}, DType::f64, "x"));
      const Dispatched out = dispatch(tape, x, tape.constant(rank.own_normal({T, K}, DType::f64, "w")), map);
      const Tensor g = rank.own_normal({map.capacity, D}, DType::f64, "g");
      const auto rows = rows_of_groups(out.rows.value(), map.groups), weights = rows_of_groups(g, map.groups);
      const auto r = static_cast<size_t>(rank.rank);
      forward[r] = std::inner_product(rows.begin(), rows.end(), weights.begin(), 0.0);
      const auto tokens = values(x.value()), sums = values(combine(tape, tape.constant(g), map).value());
      backward[r] = std::inner_product(tokens.begin(), tokens.end(), sums.begin(), 0.0);
      tape.backward({{out.rows, g}});
      EXPECT_EQ(values(tape.gradient(x)), sums) << "combine is the gradient of dispatch";
    });
    EXPECT_NEAR(std::accumulate(forward.begin(), forward.end(), 0.0),
                std::accumulate(backward.begin(), backward.end(), 0.0), 1e-11);
  }
}

TEST(Dispatch, AcceptsAllTokensOnOneRank) {
  on_ranks(4, [](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    Tape tape(rank.stream);
    const DispatchMap map = make_dispatch_map(rank.stream, routing_of(rank, {6, 7, 7, 6, 6, 7}, 2, 8), *group);
    EXPECT_EQ(map.capacity, 4 * 3 * 2);
    EXPECT_EQ(map.groups.count.to_vector<int64_t>(),
              (rank.rank == 3 ? std::vector<int64_t>{12, 12} : std::vector<int64_t>{0, 0}));
    const Var x = tape.input(rank.own_normal({3, 4}, DType::f32, "x"));
    const Dispatched out = dispatch(tape, x, tape.constant(rank.own_normal({3, 2}, DType::f32, "w")), map);
    const Var y = combine(tape, out.rows, map);
    auto expected = values(x.value());
    for (double& value : expected) value *= 2;
    EXPECT_EQ(values(y.value()), expected);
  });
}

// A rank's results of a layer's exchanges, forward and backward.
struct Exchanged {
  std::vector<std::vector<int64_t>> groups;
  std::vector<double> rows, weights, sums, dx, dweights;
  bool operator==(const Exchanged&) const = default;
};
Exchanged exchange(ThreadRank& rank, Group& group, DType dtype, int64_t K, int64_t E, int64_t most,
                   const ops::Meanwhile* meanwhile = nullptr, int64_t part_rows = 0) {
  const int64_t T = 13, D = 5;
  Tape tape(rank.stream);
  const Routing all = routing_of(rank, random_ids(T, K, E, cat("ids ", rank.rank)), K, E);
  Routing routing = testing::limited(rank, all, most);
  routing.part_rows = part_rows;
  const DispatchMap map = make_dispatch_map(rank.stream, routing, group);
  EXPECT_EQ(map.part_rows > 0, part_rows > 0 && !group.peers());
  const Var x = tape.input(rank.own_normal({T, D}, dtype, "x")),
            weights = tape.input(rank.own_normal({T, K}, accumulator(dtype), "w"));
  const Dispatched out = dispatch(tape, x, weights, map, meanwhile);
  const Var y = combine(tape, out.rows, map);
  Exchanged seen;
  for (const Tensor& of : {map.groups.begin, map.groups.count, map.groups.source_begin, map.groups.source_count})
    seen.groups.push_back(of.to_vector<int64_t>());
  seen.rows = rows_of_groups(out.rows.value(), map.groups);
  seen.weights = rows_of_groups(out.row_weights.value(), map.groups);
  seen.sums = values(y.value());
  tape.backward({{y, rank.own_normal({T, D}, dtype, "dy")},
                 {out.row_weights, rank.own_normal({map.capacity}, accumulator(dtype), "dw")}});
  seen.dx = values(tape.gradient(x));
  seen.dweights = values(tape.gradient(weights));
  return seen;
}

TEST(Dispatch, PeerMemoryGivesTheSameBits) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [ranks, K, E, most] : std::vector<std::tuple<int, int64_t, int64_t, int64_t>>{
             {2, 1, 4, 13}, {2, 3, 4, 13}, {2, 3, 4, 2}, {4, 2, 8, 13}, {4, 4, 4, 3}})
      on_ranks(ranks, [&, K = K, E = E, most = most](ThreadRank& rank) {
        const auto group = rank.everyone("expert");
        testing::PeeredGroup peered(*group);
        EXPECT_EQ(exchange(rank, peered, dtype, K, E, most), exchange(rank, *group, dtype, K, E, most));
      });
}

// Dropped assignments, experts and whole ranks without any, and parts that are full or nearly empty.
TEST(Dispatch, PartsOfAFixedSizeGiveTheSameBits) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [ranks, K, E, most] : std::vector<std::tuple<int, int64_t, int64_t, int64_t>>{
             {2, 1, 4, 13}, {2, 3, 4, 13}, {2, 3, 4, 2}, {4, 2, 8, 13}, {4, 4, 4, 3}, {4, 1, 64, 13}, {2, 8, 8, 13}})
      on_ranks(ranks, [&, K = K, E = E, most = most](ThreadRank& rank) {
        const auto group = rank.everyone("expert");
        const Exchanged with_counts = exchange(rank, *group, dtype, K, E, most);
        Stream side(rank.stream, 512);
        const ops::Meanwhile meanwhile{&side, [](Tape&) {}};
        for (const int64_t part_rows : {13 * K, 20 * K}) {
          EXPECT_EQ(exchange(rank, *group, dtype, K, E, most, nullptr, part_rows), with_counts) << part_rows;
          EXPECT_EQ(exchange(rank, *group, dtype, K, E, most, &meanwhile, part_rows), with_counts) << part_rows;
        }
        testing::PeeredGroup peered(*group);
        EXPECT_EQ(exchange(rank, peered, dtype, K, E, most, nullptr, 13 * K), with_counts) << "needs no parts";
      });
}

TEST(Dispatch, PartsBoundSentRowsAndTheReceiveBuffer) {
  on_ranks(4, [](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    Tape tape(rank.stream);
    Routing routing = routing_of(rank, {6, 7, 7, 6, 6, 7}, 2, 8);  // all for one rank, none for the others
    routing.part_rows = 6;
    DispatchMap map = make_dispatch_map(rank.stream, routing, *group);
    EXPECT_EQ(map.source.size(0), 4 * 6);
    EXPECT_EQ(map.capacity, 4 * 3 * 2);
    routing.kept = routing.counts = rank.stream.zeros({8}, DType::i64);
    routing.ids = rank.tensor<int32_t>({3, 2}, std::vector<int32_t>(6, -1));
    routing.part_rows = 2;
    map = make_dispatch_map(rank.stream, routing, *group);
    EXPECT_EQ(map.capacity, 4 * 2);
    const Var x = tape.input(rank.own_normal({3, 4}, DType::f32, "x"));
    group->reset_sent();
    const Dispatched out = dispatch(tape, x, tape.constant(rank.own_normal({3, 2}, DType::f32, "w")), map);
    EXPECT_EQ(group->sent().at("all_to_all_equal"), 3 * 2 * (4 + 1) * 4.0) << "rows and weights, though there are none";
    EXPECT_EQ(values(combine(tape, out.rows, map).value()), std::vector<double>(12));
  });
}

TEST(Dispatch, OverlapGivesTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [ranks, K, E, most] :
         std::vector<std::tuple<int, int64_t, int64_t, int64_t>>{{2, 3, 4, 13}, {4, 2, 8, 13}, {4, 4, 4, 3}})
      on_ranks(ranks, [&, K = K, E = E, most = most](ThreadRank& rank) {
        const auto group = rank.everyone("expert");
        testing::PeeredGroup peered(*group);
        Stream side(rank.stream, 512);
        int times = 0;
        const ops::Meanwhile meanwhile{&side, [&](Tape&) { ++times; }};
        for (Group* of : {static_cast<Group*>(group.get()), static_cast<Group*>(&peered)})
          EXPECT_EQ(exchange(rank, *of, dtype, K, E, most, &meanwhile), exchange(rank, *of, dtype, K, E, most));
        EXPECT_EQ(times, 2) << "once for each";
      });
}

TEST(Dispatch, OverlapsNothingIfNoRowTravels) {
  Rank rank;
  Alone alone;
  Stream side(rank.stream, 512);
  const ops::Meanwhile meanwhile{&side, [](Tape&) { FAIL() << "nothing travels"; }};
  Tape tape(rank.stream);
  dispatch(tape, tape.input(rank.normal({kTokens, kWidth}, DType::f64, "x")),
           tape.input(rank.normal({kTokens, kTopk}, DType::f64, "w")), small_map(rank, alone), &meanwhile);
}

TEST(Dispatch, PushAndPullAreAdjoint) {
  // Each rank sends a row to each of four experts, which keep no more, so that receive buffers are full and every row
  // is defined.
  // defined.
  const auto full_map = [](Tape& tape, Group& group) {
    Rank rank;  // for its tensors
    Routing all = routing_of(rank, {3, 1, 0, 2}, 1, 4);
    all.capacity = 1;
    return make_dispatch_map(tape.stream(), all, group);
  };
  std::vector<std::unique_ptr<testing::PeeredGroup>> peered(2);
  const auto of = [&](Group& group) -> Group& {
    return *(peered[static_cast<size_t>(group.rank())] = std::make_unique<testing::PeeredGroup>(group));
  };
  const Placement part = Placement::shard(0);
  testing::check_adjoint("push_assignments", 2, {4, 3}, part, part, [&](Tape& tape, const Var& x, Group& group) {
    const Var weights = tape.constant(tape.stream().zeros({4, 1}, DType::f64));
    return dispatch(tape, x, weights, full_map(tape, of(group))).rows;
  });
  testing::check_adjoint("pull_sums", 2, {4, 3}, part, part, [&](Tape& tape, const Var& pool, Group& group) {
    return combine(tape, pool, full_map(tape, of(group)));
  });
}

TEST(Dispatch, RefusesRanksWithDifferentNumbersOfTokens) {
  const std::string message = test::message_of<ShapeError>([] {
    on_ranks(2, [](ThreadRank& rank) {
      const auto group = rank.everyone("expert");
      const int64_t T = rank.rank == 0 ? 1 : 9;
      make_dispatch_map(rank.stream, routing_of(rank, std::vector<int32_t>(static_cast<size_t>(T), 0), 1, 2), *group);
      group->barrier(rank.stream);
    });
  });
  EXPECT_NE(message.find("rank 0: receive_order: 10 rows arrive for a receive buffer of 2"), std::string::npos)
      << message;
}

}  // namespace
}  // namespace witan
