#include "witan/ops/shape/redistribute.h"

#include <gmock/gmock.h>

#include "support/adjoint.h"
#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/thread_peers.h"
#include "witan/comm/meta.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using test::message_of;
using testing::check_adjoint;
using testing::on_ranks;
using testing::Rank;
using testing::ThreadRank;
using testing::values;
using Kind = Placement::Kind;
using Locals = std::vector<std::vector<double>>;

const std::vector<Placement> kPlacements = {Placement::replicate(), Placement::replicate(Placement::Uses::own),
                                            Placement::shard(0),    Placement::shard(1),
                                            Placement::shard(2),    Placement::partial()};

Shape local_shape(const Shape& global, Placement placement, int ranks) {
  return placement.kind == Kind::shard ? global.with(placement.dim, global[placement.dim] / ranks) : global;
}

// The global tensor [a, b, c] that the ranks hold together, element by element.
std::vector<double> global_values(const Locals& locals, const Shape& global, Placement placement) {
  const auto ranks = static_cast<int64_t>(locals.size());
  const Shape local = local_shape(global, placement, static_cast<int>(ranks));
  std::vector<double> out;
  for (int64_t i = 0; i < global.elements(); ++i) {
    std::array<int64_t, 3> index = {i / (global[1] * global[2]), i / global[2] % global[1], i % global[2]};
    int64_t rank = 0;
    if (placement.kind == Kind::shard) {
      const int64_t part = local[placement.dim];
      int64_t& at = index[static_cast<size_t>(placement.dim)];
      rank = at / part;
      at %= part;
    }
    const auto element = static_cast<size_t>((index[0] * local[1] + index[1]) * local[2] + index[2]);
    double value = locals[static_cast<size_t>(rank)][element];
    for (int64_t other = 1; placement.kind == Kind::partial && other < ranks; ++other)
      value += locals[static_cast<size_t>(other)][element];
    out.push_back(value);
  }
  return out;
}

TEST(Redistribute, KeepsTheGlobalTensorForwardAndBackward) {
  for (const int ranks : {2, 3, 4}) {
    const Shape global = {2L * ranks, 1L * ranks, 3L * ranks};
    for (const Placement from : kPlacements) {
      for (const Placement to : kPlacements) {
        const auto run = check_adjoint(
            "redistribute", ranks, local_shape(global, from, ranks), from, to,
            [&](Tape& tape, const Var& x, Group& group) { return ops::redistribute(tape, x, group, from, to); });
        const auto x = global_values(run.x, global, from), y = global_values(run.y, global, to);
        EXPECT_TRUE(testing::close(y, x, 1e-14, 0)) << from << " -> " << to;
        const auto dy = global_values(run.dy, global, to.of_gradient());
        EXPECT_TRUE(testing::close(global_values(run.dx, global, from.of_gradient()), dy, 1e-14, 0))
            << "gradient of " << from << " -> " << to;
      }
    }
  }
}

TEST(Redistribute, UsesTheCollectivesItsHeaderLists) {
  using Calls = std::vector<std::string>;
  const auto calls_of = [](Placement from, Placement to) {
    Rank rank(1);
    Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
    MetaGroup group(2, 1, "tensor");
    Tape tape(meta);
    const Var x = tape.input(meta.empty({4, 4}, DType::f32));
    const Var y = ops::redistribute(tape, x, group, from, to);
    const auto names = [&] {
      std::string text;
      for (const auto& [name, bytes] : group.sent()) text += name;
      group.reset_sent();
      return text;
    };
    Calls calls = {names()};
    tape.backward({{y, {}}});
    EXPECT_EQ(tape.gradient(x).shape(), x.shape());
    calls.push_back(names());
    return calls;
  };
  const Placement all = Placement::replicate(), own = Placement::replicate(Placement::Uses::own);
  const Placement rows = Placement::shard(0), columns = Placement::shard(1), partial = Placement::partial();
  EXPECT_EQ(calls_of(columns, own), (Calls{"all_gather", "reduce_scatter"}));
  EXPECT_EQ(calls_of(rows, all), (Calls{"all_gather", ""}));
  EXPECT_EQ(calls_of(all, columns), (Calls{"", "all_gather"}));
  EXPECT_EQ(calls_of(own, rows), (Calls{"", ""}));
  EXPECT_EQ(calls_of(partial, all), (Calls{"all_reduce", ""}));
  EXPECT_EQ(calls_of(partial, own), (Calls{"all_reduce", "all_reduce"}));
  EXPECT_EQ(calls_of(partial, rows), (Calls{"reduce_scatter", "all_gather"}));
  EXPECT_EQ(calls_of(rows, columns), (Calls{"all_to_all_equal", "all_to_all_equal"}));
  EXPECT_EQ(calls_of(all, own), (Calls{"", "all_reduce"}));
  EXPECT_EQ(calls_of(own, all), (Calls{"", ""}));
  for (const Placement from : {rows, columns, all, own}) EXPECT_EQ(calls_of(from, partial), (Calls{"", ""}));
}

// Parts of the outermost dim are contiguous. For other dims the whole tensor is packed, or unpacked, once, and so are
// parts that only this rank needs.
TEST(Redistribute, CopiesAtMostOnce) {
  constexpr double kPart = 3.0 * 4 * 5 * 2, kWhole = 2 * kPart;
  const auto copied = [](int64_t batch, Placement from, Placement to) {
    Rank rank(1);
    Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
    MetaGroup group(2, 1, "tensor");
    Tape tape(meta);
    const Shape whole = {batch, 8 * 3 / batch, 5};
    const Var x = tape.input(meta.empty(local_shape(whole, from, 2), DType::bf16));
    const Var y = ops::redistribute(tape, x, group, from, to);
    const auto bytes = [&] {
      double sum = 0;
      for (const auto& [part, kernels] : meta.costs())
        for (const auto& [kernel, cost] : kernels) sum += cost.bytes / 2;  // read and written
      meta.reset_costs();
      return sum;
    };
    const double forward = bytes();
    tape.backward({{y, meta.empty(y.shape(), DType::bf16)}});
    return std::pair(forward, bytes());
  };
  const Placement own = Placement::replicate(Placement::Uses::own), tokens = Placement::shard(1);
  EXPECT_EQ(copied(3, tokens, own), std::pair(kWhole, kWhole));
  EXPECT_EQ(copied(3, Placement::partial(), tokens), std::pair(kWhole, kWhole));
  EXPECT_EQ(copied(1, tokens, own), std::pair(0.0, 0.0));
  EXPECT_EQ(copied(1, Placement::partial(), tokens), std::pair(0.0, 0.0));
  EXPECT_EQ(copied(3, own, tokens), std::pair(kPart, (kPart + kWhole) / 2));
  EXPECT_EQ(copied(3, Placement::partial(), Placement::replicate()), std::pair(kWhole, 0.0));
}

// The values are the same whether sums, of gradients too, overwrite their inputs or are copies.
TEST(Redistribute, SumsOverwriteUnsharedInputs) {
  constexpr int64_t kElements = 1000;
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    const Tensor input = rank.own_normal({kElements}, DType::f64, "x"),
                 dz = rank.own_normal({kElements}, DType::f64, "dz");
    const auto run = [&](bool hold) {
      Tape tape(rank.stream);
      rank.stream.reset_costs();
      const Var x = tape.input(input);
      Var summand = ops::scale(tape, x, 2), held;
      if (hold) held = summand;
      const auto before = values(summand.value());
      const Var y = ops::redistribute(tape, std::move(summand), *group, Placement::partial(),
                                      Placement::replicate(Placement::Uses::own));
      if (hold) {
        EXPECT_EQ(values(held.value()), before);
      }
      const Var z = ops::scale(tape, y, 3);
      tape.backward({{z, dz}});
      double copied = 0;
      for (const auto& [part, kernels] : rank.stream.costs())
        if (kernels.contains("take_part")) copied += kernels.at("take_part").bytes / 2;
      return std::tuple(values(z.value()), values(tape.gradient(x)), copied);
    };
    const auto [z, dx, copied] = run(false);
    const auto [z_held, dx_held, copied_held] = run(true);
    EXPECT_EQ(z, z_held);
    EXPECT_EQ(dx, dx_held);
    EXPECT_EQ(copied, 0);
    EXPECT_EQ(copied_held, kElements * 8) << "forward; the gradient is nobody else's";
    const Tensor sum = rank.tensor<double>({kElements}, values(dz));
    group->all_reduce(rank.stream, sum);
    for (double& value : sum.span<double>()) value *= 6;
    EXPECT_TRUE(testing::close(dx, values(sum), 1e-14, 1e-14));
  });
}

// With peer memory, parts along an inner dim are neither packed nor unpacked.
TEST(Redistribute, PeerMemoryGivesTheSameBits) {
  for (const int ranks : {2, 3, 4})
    for (const auto& [from, to] : {std::pair{Placement::shard(1), Placement::replicate(Placement::Uses::own)},
                                   {Placement::partial(), Placement::shard(1)},
                                   {Placement::partial(), Placement::shard(2)}})
      on_ranks(ranks, [&, from = from, to = to](ThreadRank& rank) {
        const auto group = rank.everyone("group"), through = rank.everyone("through");
        testing::PeeredGroup peered(*through);
        const Shape local = local_shape({3, 4L * ranks, 2L * ranks}, from, ranks);
        const Tensor x = rank.own_normal(local, DType::bf16, "x");
        const auto run = [&](Group& of) {
          Tape tape(rank.stream);
          const Var in = tape.input(x), out = ops::redistribute(tape, in, of, from, to);
          tape.backward({{out, rank.own_normal(out.shape(), DType::bf16, "dy")}});
          return std::pair{values(out.value()), values(tape.gradient(in))};
        };
        EXPECT_EQ(run(peered), run(*group)) << ranks;
        EXPECT_EQ(peered.sent(), group->sent());
      });
}

TEST(Redistribute, ReturnsXForOneRankOrTheSamePlacement) {
  Rank rank(1);
  Tape tape(rank.stream);
  MetaGroup one(1, 0, "tensor"), two(2, 0, "tensor");
  const Var x = tape.input(rank.normal({2, 3}, DType::f32, "x"));
  for (const Placement from : kPlacements) {
    for (const Placement to : kPlacements) {
      if (from.dim > 1 || to.dim > 1) continue;
      EXPECT_EQ(ops::redistribute(tape, x, one, from, to).value().raw(), x.value().raw());
    }
    if (from.dim < 2) {
      EXPECT_EQ(ops::redistribute(tape, x, two, from, from).value().raw(), x.value().raw());
    }
  }
  tape.backward({{x, {}}});
  EXPECT_TRUE(one.sent().empty());
}

TEST(Redistribute, AcceptsEmptyTensors) {
  for (const Placement to : {Placement::shard(0), Placement::partial(), Placement::replicate()})
    check_adjoint("redistribute", 2, {4, 0}, Placement::shard(1), to, [&](Tape& tape, const Var& x, Group& group) {
      return ops::redistribute(tape, x, group, Placement::shard(1), to);
    });
}

TEST(Redistribute, RefusesDimsThatDoNotDivide) {
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  Tape tape(meta);
  MetaGroup group(3, 0, "tensor");
  const Var x = tape.input(meta.empty({6, 4}, DType::f32));
  EXPECT_EQ(
      message_of<ShapeError>([&] { ops::redistribute(tape, x, group, Placement::replicate(), Placement::shard(1)); }),
      "redistribute over axis tensor: dim 1 of [6, 4] is not divisible by its 3 ranks; pad it or choose another size");
  EXPECT_EQ(
      message_of<ShapeError>([&] { ops::redistribute(tape, x, group, Placement::shard(2), Placement::partial()); }),
      "redistribute over axis tensor: no dim 2 in [6, 4]");
  EXPECT_THROW(ops::redistribute(tape, x, group, Placement::shard(0), Placement::shard(1)), ShapeError);
  EXPECT_THROW(ops::redistribute(tape, x, group, Placement::partial(), Placement::shard(-1)), ShapeError);
}

// The columns that ranks hold, as unevenly as allowed.
TEST(GatherColumns, ConcatenatesColumnsOnEveryRank) {
  for (const std::vector<int64_t>& begins : {std::vector<int64_t>{0, 4}, {0, 3, 5}, {0, 0, 1, 7}, {0, 2, 4, 6, 8}}) {
    const auto n = static_cast<int>(begins.size()) - 1;
    const int64_t columns = begins.back(), T = 5;
    on_ranks(n, [&](ThreadRank& rank) {
      const auto group = rank.everyone("tensor");
      const Tensor whole = rank.normal({T, columns}, DType::f64, "x"), dy = rank.normal({T, columns}, DType::f64, "dy");
      const int64_t begin = begins[static_cast<size_t>(rank.rank)],
                    own = begins[static_cast<size_t>(rank.rank) + 1] - begin;
      const auto mine = [&](const Tensor& of) {
        std::vector<double> part;
        for (int64_t t = 0; t < T; ++t)
          part.insert(part.end(), of.data<double>() + t * columns + begin,
                      of.data<double>() + t * columns + begin + own);
        return part;
      };
      Tape tape(rank.stream);
      const Var x = tape.input(rank.tensor<double>({T, own}, mine(whole)));
      const Var y = ops::gather_columns(tape, x, *group, begins);
      EXPECT_EQ(values(y.value()), values(whole));
      tape.backward({{y, dy}});
      EXPECT_EQ(values(tape.gradient(x)), mine(dy));
    });
  }
  const std::vector<int64_t> begins = {0, 2, 4, 6};
  check_adjoint("gather_columns", 3, {4, 2}, Placement::shard(1), Placement::replicate(),
                [&](Tape& tape, const Var& x, Group& group) { return ops::gather_columns(tape, x, group, begins); });
}

TEST(GatherColumns, ErrorsNameWrongShapes) {
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  Tape tape(meta);
  MetaGroup group(3, 1, "tensor");
  const Var x = tape.input(meta.empty({6, 4}, DType::f32));
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::gather_columns(tape, x, group, std::vector<int64_t>{0, 4, 9, 12});
            }),
            "gather_columns over axis tensor: x [6, 4] is not rank 1's columns [T, n]");
  EXPECT_THROW(ops::gather_columns(tape, x, group, std::vector<int64_t>{0, 4, 8}), ShapeError);
}

// counts[from][to] rows; some ranks send or receive none.
struct Exchange {
  std::vector<std::vector<int64_t>> counts;
  std::vector<int64_t> sends(size_t rank) const { return counts[rank]; }
  std::vector<int64_t> receives(size_t rank) const {
    std::vector<int64_t> column;
    for (const auto& row : counts) column.push_back(row[rank]);
    return column;
  }
};
int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

TEST(ExchangeRows, AdjointIsTheReversedExchange) {
  for (const Exchange& exchange :
       {Exchange{{{2, 3}, {3, 3}}}, Exchange{{{0, 0}, {0, 0}}}, Exchange{{{0, 2, 1}, {4, 0, 0}, {0, 0, 0}}}}) {
    constexpr int64_t kSpareRows = 2, D = 3;  // rows that are never sent, and rows that are never filled
    const size_t n = exchange.counts.size();
    std::vector<double> forward(n), backward(n);
    on_ranks(static_cast<int>(n), [&](ThreadRank& rank) {
      const auto group = rank.everyone("expert");
      const auto r = static_cast<size_t>(rank.rank);
      const auto sends = exchange.sends(r), receives = exchange.receives(r);
      const auto size = static_cast<int64_t>(n);
      Tape tape(rank.stream);
      const Var x = tape.input(rank.own_normal({sum(sends) + kSpareRows, D}, DType::f64, "x"));
      const Var y = ops::exchange_rows(tape, x, *group, rank.tensor({size}, sends), rank.tensor({size}, receives),
                                       sum(receives) + kSpareRows);
      ASSERT_EQ(y.shape(), (Shape{sum(receives) + kSpareRows, D}));
      const Tensor dy = rank.own_normal(y.shape(), DType::f64, "dy");
      for (int64_t i = sum(receives) * D; i < dy.elements(); ++i) dy.data<double>()[i] = std::nan("");
      for (int64_t i = 0; i < sum(receives) * D; ++i) forward[r] += y.value().data<double>()[i] * dy.data<double>()[i];
      tape.backward({{y, dy}});
      const Tensor dx = tape.gradient(x);
      for (int64_t i = 0; i < dx.elements(); ++i) backward[r] += dx.data<double>()[i] * x.value().data<double>()[i];
      for (int64_t i = sum(sends) * D; i < dx.elements(); ++i) EXPECT_EQ(dx.data<double>()[i], 0) << "never sent";
    });
    EXPECT_NEAR(std::accumulate(forward.begin(), forward.end(), 0.0),
                std::accumulate(backward.begin(), backward.end(), 0.0), 1e-12);
  }
}

TEST(ExchangeRows, GradientsMatchDifferences) {
  Rank rank;
  MetaGroup alone(1, 0, "expert");
  const Tensor count = rank.tensor<int64_t>({1}, {4});
  testing::gradcheck(rank, "exchange_rows",
                     [&](Tape& tape, const std::vector<Var>& in) {
                       return std::vector{ops::exchange_rows(tape, in[0], alone, count, count, 4)};
                     },
                     {rank.normal({5, 2}, DType::f64, "rows")});
}

TEST(ExchangeParts, IsItsOwnAdjoint) {
  const Placement part = Placement::shard(0);
  for (const int ranks : {1, 2, 4})
    testing::check_adjoint("exchange_parts", ranks, {3 * ranks, 2}, part, part,
                           [](Tape& tape, const Var& x, Group& group) { return ops::exchange_parts(tape, x, group); });
}

TEST(ExchangeRows, IsPlannedOnMeta) {
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  MetaGroup group(8, 5, "expert");
  Tape tape(meta);
  const Var x = tape.input(meta.empty({64, 4}, DType::bf16));
  const Tensor counts = meta.empty({8}, DType::i64);
  const Var y = ops::exchange_rows(tape, x, group, counts, counts, 512);
  EXPECT_EQ(y.shape(), (Shape{512, 4}));
  tape.backward({{y, {}}});
  EXPECT_EQ(tape.gradient(x).shape(), x.shape());
  EXPECT_EQ(group.sent().at("all_to_all"), 2 * 64 * 8 * 7 / 8.0);
}

TEST(ExchangeRows, ErrorsNameWrongShapes) {
  Rank rank(1);
  MetaGroup group(1, 0, "expert");
  Tape tape(rank.stream);
  const Tensor count = rank.tensor<int64_t>({1}, {1});
  const Var flat = tape.input(rank.normal({4}, DType::f32, "x")), x = tape.input(rank.normal({4, 1}, DType::f32, "x"));
  EXPECT_EQ(message_of<ShapeError>([&] { ops::exchange_rows(tape, flat, group, count, count, 4); }),
            "exchange_rows: rows must be [R, D], got [4]");
  EXPECT_THROW(ops::exchange_rows(tape, x, group, count, count, -1), ShapeError);
  EXPECT_THAT(message_of<CommError>([&] { ops::exchange_rows(tape, x, group, count, count, 0); }),
              ::testing::HasSubstr("do not fit into [0, 1]"));
}

}  // namespace
}  // namespace witan
