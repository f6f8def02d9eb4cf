#include "witan/autograd/tape.h"

#include "autograd/small_ops.h"

namespace witan {
namespace {

using namespace testing;
using Values = std::vector<double>;

constexpr int64_t kWide = 1 << 16;  // float32 elements of a tensor whose memory is checked
constexpr int64_t kWideBytes = kWide * 4;

TEST(Tape, SumsSeveralRoots) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<float>({2}, {1, 2}));
  const Var a = times(tape, x, 3), b = square(tape, x);
  tape.backward({{a, rank.tensor<float>({2}, {1, 10})}, {b, {}}});  // no gradient given: ones
  EXPECT_EQ(values(tape.gradient(x)), (Values{3 + 2, 30 + 4}));
}

TEST(Tape, CountsAUsedRootTwice) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<float>({1}, {1})), y = times(tape, x, 2), z = times(tape, y, 5);
  const Tensor seed = rank.tensor<float>({1}, {1});
  tape.backward({{y, seed}, {z, {}}});
  EXPECT_EQ(values(tape.gradient(x)), Values{2 * (1 + 5)});
  EXPECT_EQ(values(seed), Values{1}) << "the caller's tensor is not written to";
}

TEST(Tape, SumsSeveralUses) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<float>({1}, {3}));
  const Var y = plus(tape, plus(tape, times(tape, x, 2), square(tape, x)), x);
  tape.backward({{y, {}}});
  EXPECT_EQ(values(tape.gradient(x)), Values{2 + 6 + 1});
}

TEST(Tape, DoesNotOverwriteAGradientSharedByTwoInputs) {
  Rank rank;
  Tape tape(rank.stream);
  const Var a = tape.input(rank.tensor<float>({1}, {1})), b = tape.input(rank.tensor<float>({1}, {1}));
  const Var more = times(tape, b, 7);  // b's gradient grows after plus() handed the same tensor to a and b
  const Var y = plus(tape, a, b);
  tape.backward({{y, {}}, {more, {}}});
  EXPECT_EQ(values(tape.gradient(a)), Values{1});
  EXPECT_EQ(values(tape.gradient(b)), Values{8});
}

TEST(Tape, UnusedOutputsHaveNoGradient) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<float>({1}, {1}));
  int calls = 0;
  const auto pair = [&](bool expect_first) {
    return tape.record("pair",
                       {rank.tensor<float>({1}, {1}), rank.tensor<float>({1}, {2}), rank.tensor<int32_t>({1}, {3})},
                       {x}, [&calls, expect_first](Backward&, const std::vector<Tensor>& gradients) {
                         ++calls;
                         ASSERT_EQ(gradients.size(), 3u);
                         EXPECT_EQ(gradients[0].defined(), expect_first);
                         EXPECT_EQ(gradients[1].defined(), !expect_first);
                         EXPECT_FALSE(gradients[2].defined());
                       });
  };
  const auto first = pair(true), second = pair(false), none = pair(true);
  EXPECT_TRUE(first[1].needs_gradient());
  EXPECT_FALSE(first[2].needs_gradient()) << "integers have no gradient";
  tape.backward({{first[0], {}}, {second[1], {}}, {first[2], {}}});
  EXPECT_EQ(calls, 2) << "a node without used outputs does not run";
  EXPECT_FALSE(tape.gradient(x).defined());
}

TEST(Tape, ConstantsHaveNoGradient) {
  Rank rank;
  Tape tape(rank.stream);
  const Var c = tape.constant(rank.tensor<float>({1}, {2}));
  EXPECT_FALSE(square(tape, c).needs_gradient());
  const Var x = tape.input(rank.tensor<float>({1}, {3})), y = multiply(tape, x, c);
  tape.backward({{y, {}}});
  EXPECT_EQ(values(tape.gradient(x)), Values{2});
}

TEST(Tape, RecordsNothingBelowTheLowestTrainedParameter) {
  Rank rank;
  const auto low = leaf(rank, {2, 2}, "low"), middle = leaf(rank, {2, 2}, "middle"), high = leaf(rank, {2, 2}, "high");
  low->frozen = high->frozen = true;
  std::vector<std::string> passed;
  Tape tape(rank.stream);
  const auto layer = [&](const Var& x, Leaf& weight, const std::string& name) {
    const size_t entered = tape.mark([&passed, name] { passed.push_back("left " + name); });
    const Var y = testing::linear(tape, x, tape.parameter(weight));
    tape.close_mark(entered, [&passed, name] { passed.push_back("entered " + name); });
    return y;
  };
  const Var x = tape.constant(rank.normal({3, 2}, DType::f32, "x"));
  const Var first = layer(x, *low, "low");
  EXPECT_FALSE(first.needs_gradient());
  const Var last = layer(layer(first, *middle, "middle"), *high, "high");
  tape.backward({{last, {}}});
  EXPECT_EQ(passed, (std::vector<std::string>{"entered high", "left high", "entered middle", "left middle"}));
  EXPECT_EQ(low->ready + high->ready, 0);
  EXPECT_EQ(middle->ready, 1);
  EXPECT_FALSE(low->gradient_written || high->gradient_written);
  EXPECT_TRUE(middle->gradient_written);
}

TEST(Tape, ParametersAreReadyAfterTheirLastUse) {
  Rank rank;
  std::vector<std::string> events;
  const auto w = leaf(rank, {1}, "w", [&] { events.push_back("w"); });
  const auto v = leaf(rank, {1}, "v", [&] { events.push_back("v"); });
  Tape tape(rank.stream);
  Var y = tape.constant(rank.tensor<float>({1}, {2}));
  for (const auto& [parameter, name] : {std::pair{w.get(), "1"}, {v.get(), "2"}, {v.get(), "3"}, {w.get(), "4"}}) {
    tape.mark([&events, name = std::string(name)] { events.push_back(name); });
    y = multiply(tape, y, tape.parameter(*parameter));
  }
  EXPECT_EQ(tape.leaves(), (std::vector<Leaf*>{w.get(), v.get()}));
  tape.backward({{y, {}}});
  EXPECT_EQ(events, (std::vector<std::string>{"4", "3", "v", "2", "w", "1"}));
  const double a = values(w->value())[0], b = values(v->value())[0];
  EXPECT_TRUE(close(values(w->gradient()), {4 * a * b * b}, 1e-6, 1e-6));
  EXPECT_TRUE(close(values(v->gradient()), {4 * a * a * b}, 1e-6, 1e-6));
}

TEST(Tape, UnreachedParametersAreReady) {
  Rank rank;
  const auto w = leaf(rank, {1}, "w"), v = leaf(rank, {1}, "v");
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<float>({1}, {2}));
  const Var y = multiply(tape, x, tape.parameter(*w));
  multiply(tape, x, tape.parameter(*w));  // dropped
  multiply(tape, x, tape.parameter(*v));
  tape.backward({{y, {}}});
  EXPECT_EQ(w->ready, 1);
  EXPECT_EQ(v->ready, 1);
  EXPECT_FALSE(v->gradient_written);
  EXPECT_EQ(values(w->gradient()), Values{2});
}

TEST(Tape, AccumulatesMicroBatchesUntilTheGradientIsTaken) {
  Rank rank;
  const auto w = leaf(rank, {1}, "w");
  const auto pass = [&](float x) {
    Tape tape(rank.stream);
    tape.backward({{multiply(tape, tape.constant(rank.tensor<float>({1}, {x})), tape.parameter(*w)), {}}});
    return values(w->gradient());
  };
  EXPECT_EQ(pass(2), Values{2});
  EXPECT_EQ(pass(3), Values{5});
  w->gradient_written = false;
  EXPECT_EQ(pass(4), Values{4});
}

TEST(Tape, AccumulatesGradientsOfBf16ParametersInFloat32) {
  Rank rank;
  LoudLeaf w(rank.tensor<bf16>({1}, {bf16(1.0f)}), rank.poisoned({1}, DType::f32));
  Tape tape(rank.stream);
  const Var one = times(tape, tape.parameter(w), 1), small = times(tape, tape.parameter(w), 1.0f / 1024);
  const Var direct =
      tape.record("write", one.value(), {one}, [p = tape.slot(tape.parameter(w))](Backward& b, const Tensor&) {
        b.write(p, [](const Tensor& to, Write how) {
          EXPECT_EQ(to.dtype(), DType::f32);
          EXPECT_EQ(how, Write::overwrite);  // it runs first
          to.data<float>()[0] = 1.0f / 4096;
        });
      });
  tape.backward({{one, {}}, {small, {}}, {direct, {}}});
  EXPECT_EQ(values(w.gradient()), Values{1 + 1.0 / 1024 + 1.0 / 4096}) << "a bf16 would have kept 1";
}

TEST(Tape, WriteAllocatesTensorsForValues) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<bf16>({2}, {bf16(1.0f), bf16(2.0f)}));
  Var y = x;
  for (int i = 0; i < 2; ++i)
    y = tape.record("write", x.value(), {x, y}, [x = tape.slot(x), y = tape.slot(y)](Backward& b, const Tensor& dy) {
      b.write(x, [](const Tensor& to, Write how) {
        EXPECT_EQ(how, Write::overwrite);
        EXPECT_EQ(to.dtype(), DType::bf16);
        std::ranges::fill(to.span<bf16>(), bf16(3.0f));
      });
      b.add(y, dy);
      b.write(Slot(), [](const Tensor&, Write) { ADD_FAILURE() << "nobody wants it"; });
    });
  tape.backward({{y, {}}});
  EXPECT_EQ(values(tape.gradient(x)), (Values{7, 7}));
}

TEST(Tape, SavesNothingIfDisabled) {
  Rank rank;
  const Tensor input = rank.normal({kWide}, DType::f32, "x");
  const auto w = leaf(rank, {kWide}, "w");
  const int64_t before = rank.stream.arena().live();
  Tape tape(rank.stream, Tape::Mode::off);
  Var y = tape.input(input);
  for (int i = 0; i < 5; ++i) y = square(tape, multiply(tape, y, tape.parameter(*w)));
  tape.mark([] { ADD_FAILURE() << "never runs"; });
  EXPECT_FALSE(y.needs_gradient());
  EXPECT_EQ(rank.stream.arena().live() - before, kWideBytes) << "only the last output is live";
  EXPECT_EQ(tape.leaves(), std::vector<Leaf*>{w.get()}) << "parameters are recorded nevertheless";
}

TEST(Tape, BackwardFreesMemoryNodeByNode) {
  Rank rank;
  Arena& arena = rank.stream.arena();
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({kWide}, DType::f32, "x", 0.1));
  std::vector<int64_t> live;
  Var y = x;
  for (int i = 0; i < 5; ++i) {
    tape.mark([&] { live.push_back(arena.live()); });
    y = square(tape, y);
  }
  EXPECT_EQ(arena.live(), 6 * kWideBytes);
  tape.backward({{std::exchange(y, {}), {}}});
  ASSERT_EQ(live.size(), 5u);
  for (size_t i = 1; i + 1 < live.size(); ++i) EXPECT_EQ(live[i] - live[i - 1], -kWideBytes) << "after node " << i;
  EXPECT_EQ(live[4], live[3]) << "the first node saved x, which this test holds";
  EXPECT_EQ(arena.live(), 2 * kWideBytes) << "the input and its gradient";
}

}  // namespace
}  // namespace witan
