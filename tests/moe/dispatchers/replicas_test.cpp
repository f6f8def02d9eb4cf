// tests/train/step/layouts/expert_replicas_test.cpp tests whole steps with replicas.
#include "witan/moe/dispatchers/replicas.h"

#include <functional>

#include "moe/moe_support.h"
#include "support/thread_peers.h"
#include "support/thread_world.h"
#include "witan/autograd/recompute.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::ThreadRank;
using testing::values;
using Integers = std::vector<int64_t>;

TEST(ReplicaSlots, AreLimitedByOtherRanksExperts) {
  MoeConfig config;  // 8 experts
  config.moe_replicated_experts = 2;
  EXPECT_EQ(replica_slots(config, 1), 0);
  EXPECT_EQ(replica_slots(config, 4), 2);
  config.moe_replicated_experts = 100;
  EXPECT_EQ(replica_slots(config, 2), 4);
  EXPECT_EQ(replica_slots(config, 8), 7);
  config.num_experts = 1000;
  EXPECT_EQ(replica_slots(config, 8), 3) << "1024 places, which peers can tell apart";
  config.num_experts = 2048;
  EXPECT_EQ(replica_slots(config, 8), 0);
}

// Two ranks with two experts and one slot each. Every token chooses expert 0 and one of the others.
TEST(PlaceReplicas, SendsTokensToTheirReplicas) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    const Routing routing = testing::routing_of(rank, {0, 1, 0, 2, 0, 3, 0, 1}, 2, 4);
    const Routing placed = place_replicas(rank.stream, routing, 1, *group, nullptr);
    EXPECT_EQ(placed.replicas.choice.hosted.to_vector<int64_t>(), (Integers{-1, 0}));
    const int32_t hot = rank.rank == 0 ? 0 : 5;
    EXPECT_EQ(placed.ids.to_vector<int32_t>(), (std::vector<int32_t>{hot, 1, hot, 3, hot, 4, hot, 1}));
    EXPECT_EQ(placed.kept.to_vector<int64_t>(),
              rank.rank == 0 ? (Integers{4, 2, 0, 1, 1, 0}) : (Integers{0, 2, 0, 1, 1, 4}));
    EXPECT_EQ(placed.capacity, routing.capacity);
  });
}

// A choice of replicas set by hand: every slot but one holds an expert.
ops::ExpertReplicas by_hand(ThreadRank& rank, Group& group) {
  return {&group,
          {rank.tensor<int64_t>({3, 2}, {3, -1, 0, 5, 0, 3}),
           rank.tensor<int64_t>({3, 6}, {0, 1, 4, 2, 8, 9, 6, 1, 4, 5, 8, 7, 10, 1, 4, 11, 8, 7})}};
}

// Experts' own matrices are filled with the expert's number, and gradients with numbers that identify rank and slot.
TEST(ExpertReplicas, CopyExpertsAndReturnGradients) {
  for (const bool peered : {false, true})
    on_ranks(3, [&](ThreadRank& rank) {
      const auto group = rank.everyone("expert");
      testing::PeeredGroup reached(*group);
      const ops::ExpertReplicas replicas = by_hand(rank, peered ? static_cast<Group&>(reached) : *group);
      for (const Shape& matrix : {Shape{2, 3, 5}, Shape{2, 5}}) {
        SCOPED_TRACE(cat(peered ? "peers, " : "", matrix));
        const Tensor w = testing::filled(rank, matrix, DType::f64, 2.0 * rank.rank);
        for (double& value : w.narrow(0, 1, 1).reshape(Shape{matrix.elements() / 2}).span<double>()) value += 1;
        const Tensor copies = ops::copy_to_replicas(rank.stream, replicas, w);
        EXPECT_EQ(copies.shape(), matrix);
        const Integers hosted = {3, -1, 0, 5, 0, 3};
        for (int64_t slot = 0; slot < 2; ++slot) {
          const int64_t expert = hosted[static_cast<size_t>(rank.rank * 2 + slot)];
          if (expert < 0) continue;
          for (const double value : values(copies.narrow(0, slot, 1)))
            EXPECT_EQ(value, static_cast<double>(expert)) << "rank " << rank.rank << " slot " << slot;
        }
        const Tensor dw = testing::filled(rank, matrix, DType::f64, 0.5);
        const Tensor found = testing::filled(rank, matrix, DType::f64, rank.rank == 0 ? 1 : rank.rank == 1 ? 10 : 100);
        ops::add_from_replicas(rank.stream, replicas, dw, found, -1);
        const std::vector<double> all = values(dw);
        const double first = rank.rank == 0 ? 110.5 : 0.5;                           // expert 0 from ranks 1 and 2
        const double second = rank.rank == 0 ? 0.5 : rank.rank == 1 ? 101.5 : 10.5;  // 3 from ranks 0 and 2, 5 from 1
        EXPECT_EQ(all.front(), first);
        EXPECT_EQ(all.back(), second);
        ops::add_from_replicas(rank.stream, replicas, dw, found, 2);  // of rank 2's assignments only
        EXPECT_EQ(values(dw).front(), first + (rank.rank == 0 ? 100 : 0));
        EXPECT_EQ(values(dw).back(), second + (rank.rank == 1 ? 100 : rank.rank == 2 ? 10 : 0));
      }
    });
}

// A group that has access to its peers' memory, and gathers counts through another group.
class ReachedGroup : public Group {
 public:
  explicit ReachedGroup(Group& group)
      : Group(group.size(), group.rank(), group.name()), through_(group), peers_(*this, group) {}
  PeerMemory* peers() override { return &peers_; }

 private:
  void perform(Stream& stream, const Collective& call) override {
    require<CommError>(call.kind == Collective::Kind::all_gather, name_of(call.kind), " is not needed");
    through_.all_gather(stream, call.out, call.in);
  }

  Group& through_;
  testing::ThreadPeers peers_;
};

struct Layer {
  DType dtype = DType::f32;
  bool grouped = true, biases = false, again = false;
  bool parts = true;  // gradients are computed per source rank
  bool peered = false;
  int64_t ranks = 4, experts = 8, topk = 2;
  double pool_factor = 0;
  std::function<int32_t(int32_t id)> choose = [](int32_t id) {
    return id % 3 == 0 ? id : id % 2;
  };  // which experts are hot
};

// Each rank's outputs and gradients; gradients of experts are in parts.
using Found = std::vector<std::vector<double>>;

constexpr int64_t kWide = 6, kRows = 9;

std::vector<int32_t> uneven_ids(const Layer& layer, int rank) {
  std::vector<int32_t> ids = testing::random_ids(kRows, layer.topk, layer.experts, cat("ids of ", rank));
  for (size_t i = 0; i < ids.size(); i += static_cast<size_t>(layer.topk)) {  // the first choice of each token
    const int32_t first = layer.choose(ids[i]);
    const auto others = ids.begin() + static_cast<ptrdiff_t>(i) + 1;
    if (std::find(others, others + layer.topk - 1, first) == others + layer.topk - 1) ids[i] = first;
  }
  return ids;
}

void bind_parts(ThreadRank& rank, Experts& experts, int64_t parts) {
  for (Parameter* parameter : experts.parameters()) {
    std::vector<Tensor> gradients;
    for (int64_t part = 0; part < parts; ++part)
      gradients.push_back(rank.poisoned(parameter->value().shape(), accumulator(parameter->value().dtype())));
    parameter->bind_gradient_parts(std::move(gradients));
  }
}

Found pass_layer(ThreadRank& rank, const Layer& layer, int64_t slots) {
  const auto threads = rank.everyone("expert");
  ReachedGroup reached(*threads);
  Group& group = layer.peered ? static_cast<Group&>(reached) : *threads;
  MoeConfig moe;
  moe.num_experts = layer.experts;
  moe.moe_grouped_gemm = layer.grouped;
  moe.moe_expert_add_bias = layer.biases;
  MlpConfig mlp;
  mlp.ffn_hidden_size = 10;
  const Builder builder{.stream = rank.stream,
                        .dtype = layer.dtype,
                        .init_std = 0.3,
                        .output_init_std = 0.3,
                        .expert_ranks = group.size(),
                        .expert_rank = group.rank()};
  Experts experts(builder, moe, mlp, kWide);
  bind_parts(rank, experts, layer.parts ? group.size() : 1);
  const auto dispatcher = make_dispatcher(moe, group);

  Tape tape(rank.stream);
  const Var x = tape.input(rank.own_normal({kRows, kWide}, layer.dtype, "x"));
  const Var weights = tape.input(rank.own_normal({kRows, layer.topk}, accumulator(layer.dtype), "weights"));
  const std::vector<int32_t> ids = uneven_ids(layer, rank.rank);
  std::optional<ReceiveBuffers> buffers;
  if (layer.pool_factor > 0) buffers.emplace(rank.stream, layer.pool_factor).divide(2);
  const auto pass = [&](Tape& on, const std::vector<Var>& in) {
    const Routing routing = testing::routing_of(rank, ids, layer.topk, layer.experts, in[1]);
    return std::vector{dispatcher->forward(
        on, in[0], routing,
        [&](Tape& at, const Dispatched& rows, const ExpertRows& of) { return experts.forward(at, rows, of, false); },
        {buffers ? &*buffers : nullptr, slots})};
  };
  const Var y = (layer.again ? recomputed(tape, {x, weights}, pass) : pass(tape, {x, weights})).front();
  Found found = {values(y.value())};
  tape.backward({{y, rank.own_normal(y.shape(), layer.dtype, "dy")}});
  found.push_back(values(tape.gradient(x)));
  found.push_back(values(tape.gradient(weights)));
  for (Parameter* parameter : experts.parameters())
    for (int64_t part = 0; part < parameter->gradient_parts(); ++part)
      found.push_back(values(parameter->gradient_part(part)));
  return found;
}

std::vector<Found> pass_on_ranks(const Layer& layer, int64_t slots) {
  std::vector<Found> all(static_cast<size_t>(layer.ranks));
  on_ranks(static_cast<int>(layer.ranks),
           [&](ThreadRank& rank) { all[static_cast<size_t>(rank.rank)] = pass_layer(rank, layer, slots); });
  return all;
}

// Whether replicas are chosen for these ids at all.
bool replicates(const Layer& layer, int64_t slots) {
  bool any = false;
  on_ranks(static_cast<int>(layer.ranks), [&](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    const Routing routing = testing::routing_of(rank, uneven_ids(layer, rank.rank), layer.topk, layer.experts);
    const Routing placed = place_replicas(rank.stream, routing, slots, *group, nullptr);
    if (rank.rank == 0)
      for (const int64_t expert : placed.replicas.choice.hosted.to_vector<int64_t>()) any = any || expert >= 0;
  });
  return any;
}

void expect_the_same(const Layer& layer, int64_t slots, double tolerance = 0) {
  ASSERT_TRUE(replicates(layer, slots));
  const std::vector<Found> with = pass_on_ranks(layer, slots), without = pass_on_ranks(layer, 0);
  for (size_t rank = 0; rank < with.size(); ++rank) {
    ASSERT_EQ(with[rank].size(), without[rank].size());
    for (size_t i = 0; i < with[rank].size(); ++i) {
      SCOPED_TRACE(cat("rank ", rank, ", result ", i));
      if (tolerance == 0)
        EXPECT_EQ(with[rank][i], without[rank][i]);
      else
        EXPECT_TRUE(testing::close(with[rank][i], without[rank][i], tolerance, tolerance));
    }
  }
}

// Gradients by source rank are the same numbers wherever they were computed, and so are all other results.
TEST(ReplicatedLayer, HasTheBitsOfOneWithoutReplicas) {
  for (const bool peered : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
      for (const int64_t ranks : {2, 4})
        for (const int64_t slots : {1, 3}) {
          SCOPED_TRACE(cat(peered ? "peers, " : "", dtype, ", ", ranks, " ranks, ", slots, " slots"));
          expect_the_same({.dtype = dtype, .peered = peered, .ranks = ranks}, slots);
        }
}

TEST(ReplicatedLayer, HasThemInOtherConfigurations) {
  for (const bool peered : {false, true}) {
    SCOPED_TRACE(peered ? "peers" : "threads");
    expect_the_same({.biases = true, .peered = peered}, 2);
    expect_the_same({.grouped = false, .biases = true, .peered = peered}, 2);
    expect_the_same({.again = true, .peered = peered}, 2);
    expect_the_same({.peered = peered, .pool_factor = 4}, 2);  // in two passes
    expect_the_same({.peered = peered, .topk = 1, .choose = [](int32_t) { return 5; }},
                    2);                                                // one expert gets all tokens
    expect_the_same({.peered = peered, .ranks = 8, .experts = 8}, 4);  // one expert per rank
  }
}

// The same routing serves dispatch with replicas, in several passes, and with neither.
TEST(ReplicatedLayer, LeavesTheRoutingUnchanged) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    const auto dispatcher = make_dispatcher({}, *group);
    Tape tape(rank.stream, Tape::Mode::off);
    const Var x = tape.constant(rank.own_normal({4, kWide}, DType::f64, "x"));
    const Var weights = tape.constant(rank.own_normal({4, 2}, DType::f64, "weights"));
    const std::vector<int32_t> ids = {0, 1, 0, 2, 0, 3, 0, 1};
    const Routing routing = testing::routing_of(rank, ids, 2, 4, weights);
    ReceiveBuffers buffers(rank.stream, 2);
    buffers.divide(2);
    const auto pass = [&](const DispatchLimits& limits) {
      const auto identity = [](Tape&, const Dispatched& in, const ExpertRows&) { return in.rows; };
      return values(dispatcher->forward(tape, x, routing, identity, limits).value());
    };
    const auto plain = pass({});
    for (const DispatchLimits& limits :
         {DispatchLimits{nullptr, 1}, DispatchLimits{&buffers, 0}, DispatchLimits{&buffers, 1}}) {
      EXPECT_EQ(pass(limits), plain);
      EXPECT_EQ(routing.ids.to_vector<int32_t>(), ids);
      EXPECT_EQ(routing.kept.to_vector<int64_t>(), (Integers{4, 2, 1, 1}));
      EXPECT_EQ(routing.counts.to_vector<int64_t>(), (Integers{4, 2, 1, 1}));
      EXPECT_FALSE(routing.replicas.any());
      EXPECT_EQ(routing.buffer_rows, 0);
    }
    EXPECT_EQ(pass({}), plain);
  });
}

TEST(ReplicatedLayer, AgreesIfGradientsAreNotSeparatedByRank) {
  for (const bool peered : {false, true}) {
    SCOPED_TRACE(peered ? "peers" : "threads");
    expect_the_same({.dtype = DType::f64, .parts = false, .peered = peered}, 2, 1e-12);
    expect_the_same({.dtype = DType::f64, .biases = true, .parts = false, .peered = peered}, 2, 1e-12);
  }
}

}  // namespace
}  // namespace witan
