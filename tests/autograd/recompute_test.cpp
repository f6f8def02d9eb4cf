#include "witan/autograd/recompute.h"

#include "autograd/small_ops.h"
#include "support/message_of.h"

namespace witan {
namespace {

using namespace testing;
using test::message_of;
using Values = std::vector<double>;
using Segment = std::function<std::vector<Var>(Tape&, const std::vector<Var>&)>;

enum class Recompute { none, selective, full, nested, both, needed };

// x [4, 8] -> three layers of square(x w1^T) w2^T, each plus its input
struct Mlp {
  explicit Mlp(Rank& rank) {
    for (const char* name : {"a", "b", "c"}) {
      up.push_back(leaf(rank, {16, 8}, name));
      down.push_back(leaf(rank, {8, 16}, (std::string(name) + " down").c_str()));
    }
  }
  // Values between the two products are recomputed when the second product's backward needs them.
  Var layer_when_needed(Tape& tape, const Var& x, size_t i) const {
    const Segment inner = [this, i](Tape& t, const std::vector<Var>& in) {
      return std::vector{square(t, linear(t, in[0], t.parameter(*up[i])))};
    };
    return plus(tape, linear(tape, recomputed_when_needed(tape, {x}, inner)[0], tape.parameter(*down[i])), x);
  }
  Var layer(Tape& tape, const Var& x, size_t i, bool selective) const {
    const Var h = linear(tape, x, tape.parameter(*up[i]));
    const Var y = selective
                      ? rematerialised(tape, {h}, [](Tape& t, const std::vector<Var>& in) { return square(t, in[0]); })
                      : square(tape, h);
    return plus(tape, linear(tape, y, tape.parameter(*down[i])), x);
  }
  Var forward(Tape& tape, Var x, Recompute recompute) const {
    const bool selective = recompute == Recompute::selective || recompute == Recompute::both;
    for (size_t i = 0; i < up.size(); ++i) {
      const Segment one = [this, i, selective](Tape& t, const std::vector<Var>& in) {
        return std::vector{layer(t, in[0], i, selective)};
      };
      const Segment inner = [one](Tape& t, const std::vector<Var>& in) { return recomputed(t, in, one); };
      const bool whole = recompute == Recompute::full || recompute == Recompute::both;
      x = recompute == Recompute::needed   ? layer_when_needed(tape, x, i)
          : recompute == Recompute::nested ? recomputed(tape, {x}, inner)[0]
          : whole                          ? recomputed(tape, {x}, one)[0]
                                           : one(tape, {x})[0];
    }
    return x;
  }
  std::vector<std::unique_ptr<LoudLeaf>> up, down;
};

std::vector<Values> train(Recompute recompute, int64_t* live = nullptr) {
  Rank rank;
  const Mlp mlp(rank);
  const Tensor input = rank.normal({4, 8}, DType::f32, "x");
  const int64_t before = rank.stream.arena().live();
  Tape tape(rank.stream);
  const Var x = tape.input(input);
  Var y = mlp.forward(tape, x, recompute);
  if (live) *live = rank.stream.arena().live() - before;
  std::vector<Values> all = {values(y.value())};
  tape.backward({{std::exchange(y, {}), {}}});
  all.push_back(values(tape.gradient(x)));
  for (const auto* leaves : {&mlp.up, &mlp.down})
    for (const auto& parameter : *leaves) {
      all.push_back(values(parameter->gradient()));
      EXPECT_EQ(parameter->ready, 1);
    }
  EXPECT_EQ(rank.stream.arena().live() - before, Arena::kAlignment) << "only x's gradient is left";
  return all;
}

TEST(Recompute, EveryKindGivesTheSameBits) {
  const auto expected = train(Recompute::none);
  for (const Recompute kind :
       {Recompute::selective, Recompute::full, Recompute::nested, Recompute::both, Recompute::needed})
    EXPECT_EQ(train(kind), expected) << "kind " << static_cast<int>(kind);
}

TEST(Recompute, SavesLess) {
  int64_t none = 0, selective = 0, full = 0, needed = 0;
  train(Recompute::none, &none);
  train(Recompute::selective, &selective);
  train(Recompute::full, &full);
  train(Recompute::needed, &needed);
  EXPECT_LT(selective, none);
  EXPECT_LT(full, selective);
  EXPECT_EQ(needed, full) << "only inputs are kept";
  EXPECT_EQ(full, 3 * Arena::kAlignment) << "the inputs of two later segments and the output";
}

TEST(Recomputed, SharedParametersAreReadyAfterTheirLastUse) {
  Rank rank;
  std::vector<std::string> events;
  const auto w = leaf(rank, {1}, "w", [&] { events.push_back("ready"); });
  Tape tape(rank.stream);
  const Segment segment = [&](Tape& t, const std::vector<Var>& in) {
    t.mark([&] { events.push_back("inside"); });
    return std::vector{multiply(t, multiply(t, in[0], t.parameter(*w)), t.parameter(*w))};
  };
  const Var x = tape.input(rank.tensor<float>({1}, {1}));
  tape.mark([&] { events.push_back("first"); });
  Var y = multiply(tape, x, tape.parameter(*w));
  tape.mark([&] { events.push_back("second"); });
  y = recomputed(tape, {y}, segment)[0];
  EXPECT_EQ(tape.leaves(), std::vector<Leaf*>{w.get()});
  tape.backward({{y, {}}});
  EXPECT_EQ(events, (std::vector<std::string>{"inside", "second", "ready", "first"}));
}

TEST(Recomputed, ParametersMayBeInputs) {
  Rank rank;
  const auto w = leaf(rank, {1}, "w");
  Tape tape(rank.stream);
  const Var y = recomputed(tape, {tape.parameter(*w)},
                           [](Tape& t, const std::vector<Var>& in) { return std::vector{square(t, in[0])}; })[0];
  tape.backward({{y, {}}});
  EXPECT_EQ(values(w->gradient()), Values{2 * values(w->value())[0]});
  EXPECT_EQ(w->ready, 1);
}

TEST(Recomputed, ReturnsConstantsOfTheFirstRun) {
  Rank rank;
  Tape tape(rank.stream);
  int runs = 0;
  const auto out =
      recomputed(tape, {tape.input(rank.tensor<float>({1}, {3}))}, [&](Tape& t, const std::vector<Var>& in) {
        ++runs;
        return std::vector{square(t, in[0]), t.constant(rank.tensor<int32_t>({1}, {runs})), times(t, in[0], 2)};
      });
  tape.backward({{out[0], {}}});  // out[2] is not used
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(out[1].value().to_vector<int32_t>(), std::vector<int32_t>{1});
}

// loss = (w x)^2, recorded within nested segments, which return y = w x.
TEST(Recomputed, ForwardsLossesOfItsModules) {
  Rank rank;
  const auto w = leaf(rank, {1}, "w");
  const double weight = values(w->value())[0];
  int runs = 0;
  const Segment segment = [&](Tape& t, const std::vector<Var>& in) {
    ++runs;
    const Var y = multiply(t, in[0], t.parameter(*w));
    t.add_loss({"penalty", 0.5, LossSpec::Over::micro_batches}, square(t, y));
    return std::vector{y};
  };
  const Segment nested = [&](Tape& t, const std::vector<Var>& in) { return recomputed(t, in, segment); };
  const Segment when_needed = [&](Tape& t, const std::vector<Var>& in) {
    return recomputed_when_needed(t, in, segment);
  };
  const Segment once = [&](Tape& t, const std::vector<Var>& in) { return recomputed(t, in, segment); };
  const Segment twice = [&](Tape& t, const std::vector<Var>& in) { return recomputed(t, in, nested); };
  for (const auto& [kind, expected_runs] : {std::pair{&segment, 1}, {&once, 2}, {&when_needed, 2}, {&twice, 3}}) {
    SCOPED_TRACE(expected_runs);
    runs = 0;
    w->gradient_written = false;
    Tape tape(rank.stream);
    const Var x = tape.input(rank.tensor<float>({1}, {3}));
    const auto out = (*kind)(tape, {x});
    EXPECT_EQ(out.size(), 1u);
    ASSERT_EQ(tape.losses().size(), 1u);
    const LossRecord& loss = tape.losses().front();
    EXPECT_EQ(loss.name, "penalty");
    EXPECT_EQ(loss.coefficient, 0.5);
    EXPECT_EQ(loss.over, LossSpec::Over::micro_batches);
    EXPECT_FLOAT_EQ(static_cast<float>(values(loss.value.value())[0]), static_cast<float>(9 * weight * weight));
    tape.backward({{out[0], {}}, {loss.value, {}}});
    EXPECT_EQ(runs, expected_runs);
    // d (w x + (w x)^2)
    EXPECT_NEAR(values(tape.gradient(x))[0], weight + 2 * weight * weight * 3, 1e-5);
    EXPECT_NEAR(values(w->gradient())[0], 3 + 2 * weight * 9, 1e-5);
  }
}

TEST(Tape, KeepsNoLossesWithoutABackward) {
  Rank rank;
  Tape off(rank.stream, Tape::Mode::off), tape(rank.stream);
  const Segment segment = [&](Tape& t, const std::vector<Var>& in) {
    t.add_loss({"penalty"}, square(t, in[0]));
    return in;
  };
  const Tensor three = rank.tensor<float>({1}, {3});
  segment(off, {off.constant(three)});
  recomputed(off, {off.constant(three)}, segment);
  EXPECT_TRUE(off.losses().empty());
  EXPECT_EQ(message_of<ShapeError>([&] {
              tape.add_loss({"wide"}, tape.constant(rank.tensor<float>({2}, {1, 2})));
            }),
            "the loss wide must be [1], got [2]");
}

TEST(Recomputed, IsNotRerunIfUnused) {
  Rank rank;
  const auto w = leaf(rank, {1}, "w");
  int runs = 0;
  const Segment segment = [&](Tape& t, const std::vector<Var>& in) {
    ++runs;
    return std::vector{multiply(t, in[0], t.parameter(*w))};
  };
  Tape tape(rank.stream), off(rank.stream, Tape::Mode::off);
  const Var x = tape.input(rank.tensor<float>({1}, {3}));
  recomputed(tape, {x}, segment);
  tape.backward({{times(tape, x, 1), {}}});
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(w->ready, 1);
  EXPECT_FALSE(recomputed(off, {x}, segment)[0].needs_gradient());
  EXPECT_EQ(runs, 2) << "on a disabled tape it only runs";
}

constexpr int64_t kWide = 1 << 16, kWideBytes = kWide * 4;

// times(x, 3), counting calls
std::function<Var(Tape&, const std::vector<Var>&)> counted(int& runs) {
  return [&runs](Tape& tape, const std::vector<Var>& in) {
    ++runs;
    return times(tape, in[0], 3);
  };
}

TEST(Rematerialised, IsComputedOnceForAllSaversAndFreed) {
  Rank rank;
  Arena& arena = rank.stream.arena();
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({kWide}, DType::f32, "x"));
  int runs = 0;
  int64_t after_savers = 0, before_savers = 0;
  tape.mark([&] { after_savers = arena.live(); });
  Var z;
  {
    const Var y = rematerialised(tape, {x}, counted(runs));
    z = plus(tape, multiply(tape, y, y), plus(tape, square(tape, y), multiply(tape, y, x)));
  }
  tape.mark([&] { before_savers = arena.live(); });
  EXPECT_EQ(arena.live(), 2 * kWideBytes) << "x and z: y is not saved";
  tape.backward({{std::exchange(z, {}), {}}});
  EXPECT_EQ(runs, 2);
  EXPECT_LE(after_savers, before_savers) << "the recomputed value is freed";
  EXPECT_EQ(arena.live(), 2 * kWideBytes) << "x and its gradient";
  // z = 2 (3x)^2 + 3x^2
  const auto in = values(x.value()), gradient = values(tape.gradient(x));
  for (size_t i = 0; i < in.size(); i += 1001) EXPECT_NEAR(gradient[i], 42 * in[i], 1e-4);
}

TEST(Rematerialised, MayDependOnAnother) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<float>({1}, {2}));
  int first = 0, second = 0;
  Var z;
  {
    const Var a = rematerialised(tape, {x}, counted(first)), b = rematerialised(tape, {a}, counted(second));
    z = plus(tape, square(tape, b), square(tape, a));
  }
  tape.backward({{z, {}}});  // z = (9x)^2 + (3x)^2
  EXPECT_EQ(values(tape.gradient(x)), Values{180 * 2});
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 2);
}

TEST(Rematerialised, IsNotRecomputedIfUnused) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<float>({1}, {2}));
  int runs = 0;
  const Var y = rematerialised(tape, {x}, counted(runs));
  square(tape, y);  // saves y, but the output is dropped
  tape.backward({{times(tape, y, 2), {}}});
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(values(tape.gradient(x)), Values{6});
}

TEST(Rematerialised, DoesNothingOnADisabledTape) {
  Rank rank;
  Tape tape(rank.stream, Tape::Mode::off);
  int runs = 0;
  const Var y = rematerialised(tape, {tape.input(rank.tensor<float>({1}, {2}))}, counted(runs));
  EXPECT_EQ(values(y.value()), Values{6});
  EXPECT_EQ(runs, 1);
}

// Several outputs, each read by its own op and one by two ops, come from a single second run.
TEST(Recompute, NeededOutputsShareOneRun) {
  Rank rank;
  const Tensor input = rank.normal({4, 8}, DType::f32, "x");
  const auto weight = leaf(rank, {8, 8}, "w");
  int runs = 0;
  const Segment segment = [&](Tape& t, const std::vector<Var>& in) {
    ++runs;
    const Var h = linear(t, in[0], t.parameter(*weight));
    return std::vector{h, square(t, h)};
  };
  std::vector<Values> found;
  for (const bool again : {false, true}) {
    Tape tape(rank.stream);
    weight->gradient_written = false;
    runs = 0;
    const Var x = tape.input(input);
    std::vector<Var> out = again ? recomputed_when_needed(tape, {x}, segment) : segment(tape, {x});
    Var y = plus(tape, plus(tape, square(tape, out[0]), square(tape, out[1])), square(tape, out[1]));
    out.clear();
    tape.backward({{std::exchange(y, {}), {}}});
    EXPECT_EQ(runs, again ? 2 : 1);
    found.push_back(values(tape.gradient(x)));
    found.push_back(values(weight->gradient()));
  }
  EXPECT_EQ(found[0], found[2]);
  EXPECT_EQ(found[1], found[3]);
}

}  // namespace
}  // namespace witan
