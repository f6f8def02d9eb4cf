#include "witan/ops/shape/overlap.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/gradcheck.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::values;

// a, b -> a, a + b
ops::MovableOp copy_and_sum(Stream& stream, const Var& a, const Var& b) {
  const std::vector<Tensor> out = {stream.empty_like(a.value()), stream.empty_like(a.value())};
  return {{a, b},
          out,
          [out, from_a = a.value(), from_b = b.value()](Stream& on) {
            on.copy(out[0], from_a);
            kernels::add(on, out[1], from_a, from_b);
          },
          [](Backward&, Stream& on, const std::vector<Tensor>& gradients) {
            Tensor to_a = on.empty_like(gradients[0].defined() ? gradients[0] : gradients[1]);
            if (gradients[0].defined() && gradients[1].defined())
              kernels::add(on, to_a, gradients[0], gradients[1]);
            else
              on.copy(to_a, gradients[0].defined() ? gradients[0] : gradients[1]);
            Tensor to_b;
            if (gradients[1].defined()) on.copy(to_b = on.empty_like(to_a), gradients[1]);
            return std::vector{to_a, to_b};
          }};
}

struct RankWithSide : Rank {
  Stream side{stream, 512};
};

TEST(Overlapped, GradientsMatchDifferences) {
  RankWithSide rank;
  const Tensor a = rank.normal({3, 2}, DType::f64, "a"), b = rank.normal({3, 2}, DType::f64, "b");
  for (const bool uses_both : {true, false})
    gradcheck(
        rank, "overlapped",
        [&](Tape& tape, const std::vector<Var>& in) {
          Var scaled;
          const auto scale = [&](Tape& on) { scaled = ops::scale(on, in[0], 3); };
          std::vector<Var> out = ops::overlapped(tape, copy_and_sum(tape.stream(), in[0], in[1]), {&rank.side, scale});
          if (!uses_both) out.erase(out.begin());
          out.push_back(scaled);
          return out;
        },
        {a, b});
}

// A node that only records when its backward runs.
Var said(Tape& tape, const Var& x, const char* what, std::vector<std::string>& log) {
  log.emplace_back(what);
  return tape.record("said", x.value(), {x}, [x = tape.slot(x), what, &log](Backward& b, const Tensor& dy) {
    log.push_back(std::string("back: ") + what);
    b.add(x, dy);
  });
}

TEST(Overlapped, BackwardRunsInReverseOrder) {
  RankWithSide rank;
  std::vector<std::string> log;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({4}, DType::f64, "x"));
  const Tensor y = rank.stream.empty_like(x.value());
  const ops::MovableOp op{{x},
                          {y},
                          [&](Stream& on) {
                            EXPECT_EQ(&on, &rank.side);
                            log.emplace_back("moves");
                            on.copy(y, x.value());
                          },
                          [&](Backward&, Stream& on, const std::vector<Tensor>& gradients) {
                            EXPECT_EQ(&on, &rank.side);
                            log.emplace_back("back: moves");
                            const Tensor dx = on.empty_like(gradients[0]);
                            on.copy(dx, gradients[0]);
                            return std::vector{dx};
                          }};
  const Var before = said(tape, x, "before", log);
  Var meanwhile;
  const Var moved =
      ops::overlapped(tape, op, {&rank.side, [&](Tape& on) { meanwhile = said(on, before, "meanwhile", log); }})[0];
  const Var after = said(tape, moved, "after", log);
  EXPECT_EQ(log, (std::vector<std::string>{"before", "moves", "meanwhile", "after"}));
  log.clear();
  tape.backward({{after, {}}, {meanwhile, {}}});
  EXPECT_EQ(log, (std::vector<std::string>{"back: after", "back: moves", "back: meanwhile", "back: before"}));
  EXPECT_EQ(values(tape.gradient(x)), std::vector<double>(4, 2.0));
}

// Memory that the side stream reads and writes in the backward must not be reused by concurrent work.
TEST(Overlapped, SideStreamMemoryLivesUntilItIsWaitedFor) {
  RankWithSide rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({256}, DType::f64, "x"));
  std::set<const std::byte*> touched, taken;
  Var moved, other;
  {
    const Tensor y = rank.stream.empty_like(x.value()), table = rank.stream.zeros({256}, DType::f64);
    const auto forward = [y, from = x.value()](Stream& on) { on.copy(y, from); };
    const auto backward = [&touched, table = tape.save(table)](Backward& b, Stream& on, const std::vector<Tensor>& dy) {
      const Tensor dx = on.empty_like(dy[0]);
      on.copy(dx, dy[0]);
      touched = {dy[0].raw(), b.value(table).raw(), dx.raw()};
      return std::vector{dx};
    };
    const auto meanwhile = [&](Tape& on) {
      other = on.record("takes memory", x.value(), {x}, [&taken, x = on.slot(x)](Backward& b, const Tensor& dy) {
        std::vector<Tensor> all;
        for (int i = 0; i < 8; ++i) all.push_back(b.stream().empty_like(dy));
        for (const Tensor& one : all) taken.insert(one.raw());
        b.add(x, dy);
      });
    };
    moved = ops::overlapped(tape, {{x}, {y}, forward, backward}, {&rank.side, meanwhile})[0];
  }
  tape.backward({{std::exchange(moved, {}), {}}, {std::exchange(other, {}), {}}});
  EXPECT_EQ(touched.size(), 3U);
  EXPECT_EQ(taken.size(), 8U);
  for (const std::byte* address : touched) EXPECT_FALSE(taken.contains(address));
}

// Compares with a sequence of nodes, bits and costs.
TEST(Overlapped, HasTheBitsOfASequenceOfOps) {
  RankWithSide rank;
  const Tensor a = rank.normal({50}, DType::f32, "a"), b = rank.normal({50}, DType::f32, "b");
  const auto run = [&](bool overlaps) {
    rank.stream.reset_costs();
    Tape tape(rank.stream);
    const Var in = tape.input(a), with = tape.input(b);
    Var scaled;
    const auto scale = [&](Tape& on) { scaled = ops::scale(on, in, 0.1); };
    const ops::MovableOp op = copy_and_sum(rank.stream, in, with);
    std::vector<Var> out;
    if (overlaps) {
      out = ops::overlapped(tape, op, {&rank.side, scale});
    } else {
      op.forward(rank.stream);
      out = tape.record("copy_and_sum", op.outputs, op.inputs,
                        [a = tape.slot(in), b = tape.slot(with), back = op.backward](
                            Backward& to, const std::vector<Tensor>& gradients) {
                          const std::vector<Tensor> found = back(to, to.stream(), gradients);
                          to.add(a, found[0]);
                          to.add(b, found[1]);
                        });
      scale(tape);
    }
    const Var more = ops::scale(tape, in, 1e-3);
    tape.backward({{out[0], rank.normal({50}, DType::f32, "0")},
                   {out[1], rank.normal({50}, DType::f32, "1")},
                   {scaled, rank.normal({50}, DType::f32, "2")},
                   {more, rank.normal({50}, DType::f32, "3")}});
    EXPECT_TRUE(rank.side.costs().empty());
    std::vector<double> costs;
    for (const auto& [part, kernels] : rank.stream.costs())
      for (const auto& [kernel, cost] : kernels) costs.insert(costs.end(), {cost.flops, cost.bytes});
    return std::vector{values(out[0].value()),    values(out[1].value()),      values(scaled.value()),
                       values(tape.gradient(in)), values(tape.gradient(with)), costs};
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Overlapped, RecordsNothingWithoutATape) {
  RankWithSide rank;
  Tape off(rank.stream, Tape::Mode::off);
  const Var a = off.constant(rank.normal({5}, DType::f64, "a"));
  bool computed = false;
  const auto out = ops::overlapped(off, copy_and_sum(rank.stream, a, a), {&rank.side, [&](Tape&) { computed = true; }});
  EXPECT_TRUE(computed);
  EXPECT_EQ(values(out[0].value()), values(a.value()));
  EXPECT_FALSE(out[0].needs_gradient());
}

}  // namespace
}  // namespace witan
