#include "witan/moe/dispatchers/host_dispatch.h"

#include "moe/moe_support.h"
#include "support/adjoint.h"
#include "support/gradcheck.h"
#include "support/thread_peers.h"
#include "support/thread_world.h"
#include "witan/moe/dispatchers/dispatcher.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::Alone;
using testing::gradcheck;
using testing::on_ranks;
using testing::random_ids;
using testing::Rank;
using testing::routing_of;
using testing::ThreadRank;
using testing::values;

// A rank's groups: one within its host, and one between hosts with as many ranks each.
struct Hosts {
  Hosts(ThreadRank& rank, int of_host) {
    std::vector<int> within, between;
    for (int other = 0; other < rank.size(); ++other) {
      if (other / of_host == rank.rank / of_host) within.push_back(other);
      if (other % of_host == rank.rank % of_host) between.push_back(other);
    }
    of_one = rank.world.group(rank.rank, within, "within");
    of_all = rank.world.group(rank.rank, between, "between");
    groups = {of_all.get(), of_one.get()};
  }
  std::unique_ptr<HostGroup> of_one, of_all;
  ExpertHosts groups;
};

// Two hosts of one rank each, with two experts: token 0 visits both, token 1 the first, token 2 the second, and token 3
// is dropped. Received rows are in the order of sources, then tokens.
TEST(HostMap, ListsArrivingRows) {
  for (const int64_t copies : {0, 3, 4})
    on_ranks(2, [&](ThreadRank& rank) {
      SCOPED_TRACE(cat("parts of ", copies));
      Hosts hosts(rank, 1);
      Routing routing;
      routing.ids = rank.tensor<int32_t>({4, 2}, {3, 0, 1, 0, -1, 2, -1, -1});
      routing.kept = routing.counts = rank.tensor<int64_t>({4}, {2, 1, 1, 1});
      routing.capacity = 4;
      routing.host_bounds.copies = copies;
      const HostMap map = make_host_map(rank.stream, routing, hosts.groups);
      using Ids = std::vector<int32_t>;
      const Ids of_each = rank.rank == 0 ? Ids{-1, 0, 1, 0} : Ids{1, -1, -1, 0};
      Ids expected = of_each;
      if (copies > 0) expected.resize(static_cast<size_t>(copies) * 2, -1);
      expected.insert(expected.end(), of_each.begin(), of_each.end());
      expected.resize(static_cast<size_t>(copies > 0 ? copies : 4) * 4, -1);
      EXPECT_EQ(map.arrived.ids.to_vector<int32_t>(), expected);
      EXPECT_EQ(map.arrived.kept.to_vector<int64_t>(),
                rank.rank == 0 ? (std::vector<int64_t>{4, 2}) : (std::vector<int64_t>{2, 2}));
      EXPECT_EQ(map.copies.part_rows, copies);
    });
}

// The bound on a rank's receive buffer bounds what may arrive at its host.
TEST(HostMap, ReceiveBuffersBoundItsCapacity) {
  on_ranks(4, [&](ThreadRank& rank) {
    Hosts hosts(rank, 2);
    Routing routing = routing_of(rank, random_ids(6, 2, 8, "ids"), 2, 8);
    EXPECT_EQ(make_host_map(rank.stream, routing, hosts.groups).copies.capacity, 12);
    routing.buffer_rows = 5;
    EXPECT_EQ(make_host_map(rank.stream, routing, hosts.groups).copies.capacity, 10);
  });
}

// A map whose copies travel to the same rank, as if it were every host, because finite differences need a single rank.
HostMap own_map(Rank& rank, Group& group, int64_t copies) {
  Routing routing = routing_of(rank, {0, 1, 1, 2, 3, 0, 2, 1}, 2, 4);
  routing.host_bounds.copies = copies;
  return make_host_map(rank.stream, routing, {&group, &group});
}

TEST(HostDispatch, GradientsMatchDifferences) {
  Rank rank;
  Alone alone;
  const Tensor x = rank.normal({4, 3}, DType::f64, "x"), weights = rank.normal({4, 2}, DType::f64, "weights");
  for (const int64_t copies : {0, 4}) {
    const HostMap map = own_map(rank, alone, copies);
    const auto there = [&](Tape& tape, const std::vector<Var>& in) {
      const HostArrivals arrived = copy_to_hosts(tape, in[0], in[1], map);
      return std::vector{arrived.tokens, arrived.weights};
    };
    const auto back = [&](Tape& tape, const std::vector<Var>& in) {
      return std::vector{sum_over_hosts(tape, in[0], map)};
    };
    gradcheck(rank, "copy_to_assignments", there, {x, weights});
    gradcheck(rank, "sum_assignments", back, {rank.normal({map.copies.arriving_rows(), 3}, DType::f64, "sums")});
  }
}

// Experts that scale: expert e multiplies by the weight and by e + 1. Each rank has tokens, weights and routing of its
// own.
struct Passed {
  std::vector<double> y, dx, dweights;
};
class ScalingExperts {
 public:
  explicit ScalingExperts(int64_t first) : first_(first) {}
  Var operator()(Tape& tape, const Dispatched& given, const ExpertRows& rows) const {
    const Dispatched in = given.in_place ? copied_to_rows(tape, given) : given;
    const int64_t capacity = in.rows.size(0);
    const Tensor scale = tape.stream().zeros({capacity}, DType::f64);
    for (int64_t e = 0; e < rows.groups.experts(); ++e)
      for (int64_t i = 0; i < rows.groups.count.data<int64_t>()[e]; ++i)
        scale.data<double>()[rows.groups.begin.data<int64_t>()[e] + i] = static_cast<double>(first_ + e + 1);
    const Var y = scaled_rows(tape, scaled_rows(tape, in.rows, in.row_weights), tape.constant(scale));
    return given.in_place ? combine(tape, y, *given.in_place) : y;
  }

 private:
  // x [N, D], by [N] -> x[n,:] by[n]; unused rows are undefined
  static Var scaled_rows(Tape& tape, const Var& x, const Var& by) {
    const int64_t N = x.size(0), D = x.size(1);
    const Tensor y = tape.stream().empty(x.shape(), DType::f64);
    for (int64_t i = 0; i < N * D; ++i)
      y.data<double>()[i] = x.value().data<double>()[i] * by.value().data<double>()[i / D];
    return tape.record(
        "scaled_rows", y, {x, by},
        [x = tape.slot(x), by = tape.slot(by), of_x = x.value(), of_by = by.value(), N, D](Backward& b,
                                                                                           const Tensor& dy) {
          const Tensor dx = b.stream().empty({N, D}, DType::f64), dby = b.stream().zeros({N}, DType::f64);
          for (int64_t i = 0; i < N * D; ++i) {
            dx.data<double>()[i] = dy.data<double>()[i] * of_by.data<double>()[i / D];
            dby.data<double>()[i / D] += dy.data<double>()[i] * of_x.data<double>()[i];
          }
          b.add(x, dx);
          b.add(by, dby);
        });
  }
  int64_t first_;
};

Passed pass(ThreadRank& rank, const ModelAxes& axes, const std::vector<int32_t>& ids, int64_t K, int64_t E) {
  Tape tape(rank.stream);
  const auto T = static_cast<int64_t>(ids.size()) / K;
  const Var x = tape.input(rank.own_normal({T, 3}, DType::f64, "x")),
            weights = tape.input(rank.own_normal({T, K}, DType::f64, "w"));
  const int64_t first = axes.expert->rank() * E / axes.expert->size();
  const auto dispatcher = make_dispatcher({}, axes);
  const Var y = dispatcher->forward(tape, x, routing_of(rank, ids, K, E, weights), ScalingExperts(first));
  tape.backward({{y, rank.own_normal({T, 3}, DType::f64, "dy")}});
  return {values(y.value()), values(tape.gradient(x)), values(tape.gradient(weights))};
}

class ByHosts : public ::testing::TestWithParam<std::pair<int, int>> {};  // ranks, and those of a host
INSTANTIATE_TEST_SUITE_P(Ranks, ByHosts,
                         ::testing::Values(std::pair{4, 2}, std::pair{4, 1}, std::pair{8, 2}, std::pair{8, 4}));

// Routes all tokens to one expert, to the experts of one host, and anywhere; with and without peer memory within hosts.
TEST_P(ByHosts, EqualsDirectDispatch) {
  const auto [ranks, of_host] = GetParam();
  for (const bool peers : {false, true})
    for (const int64_t K : {1, 2, 4})
      for (const char* where : {"anywhere", "one host", "one expert"})
        on_ranks(ranks, [&, of = of_host](ThreadRank& rank) {
          const int64_t E = 2 * rank.size();
          if (std::string(where) == "one expert" && K > 1) return;
          std::vector<int32_t> ids = random_ids(
              9, K, std::string(where) == "one host" ? std::max<int64_t>(2 * of, K) : E, cat("ids of ", rank.rank));
          if (std::string(where) == "one expert") std::ranges::fill(ids, 3);
          const auto all = rank.everyone("expert");
          const Hosts hosts(rank, of);
          const Passed straight = pass(rank, *all, ids, K, E);
          ModelAxes axes(*all);
          axes.expert_hosts = hosts.groups;
          std::unique_ptr<testing::PeeredGroup> peered;
          if (peers) {
            peered = std::make_unique<testing::PeeredGroup>(*hosts.of_one);
            axes.expert_hosts.within = peered.get();
          }
          const Passed by_hosts = pass(rank, axes, ids, K, E);
          EXPECT_TRUE(testing::close(by_hosts.y, straight.y, 1e-12, 1e-12)) << where << ", top-" << K;
          EXPECT_TRUE(testing::close(by_hosts.dx, straight.dx, 1e-12, 1e-12)) << where << ", top-" << K;
          EXPECT_TRUE(testing::close(by_hosts.dweights, straight.dweights, 1e-12, 1e-12)) << where << ", top-" << K;
        });
}

}  // namespace
}  // namespace witan
