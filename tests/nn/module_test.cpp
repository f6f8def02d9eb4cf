#include "witan/nn/module.h"

#include <optional>

#include "support/module.h"
#include "witan/autograd/recompute.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;
using Names = std::vector<std::string>;

// Scales by its parameter's length, and runs a child between its two scalings.
class Nested : public Module {
 public:
  Nested(const Builder& builder, int depth)
      : Module(builder.path), weight_(add_parameter(builder, "weight", {3}, {Initialization::Kind::ones})) {
    if (depth > 1) add_child(*(first_ = std::make_unique<Nested>(builder / "first", depth - 1)));
    if (depth > 1) add_child(*(second_ = std::make_unique<Nested>(builder / "second", 1)));
    add_parameter(builder, "bias", {2}, {Initialization::Kind::zeros}, false);
  }

  Var forward(Tape& tape, const Var& x) {
    const ModuleScope scope(tape, *this);
    Var y = ops::add(tape, x, tape.parameter(weight_));
    if (first_) y = second_->forward(tape, first_->forward(tape, y));
    return ops::scale(tape, y, 2);
  }

 private:
  Parameter& weight_;
  std::unique_ptr<Nested> first_, second_;
};

std::vector<ModuleObserver> listen(Module& root, Names& heard) {
  std::vector<ModuleObserver> observers;
  root.visit([&](Module& module) {
    const auto say = [&heard, path = module.path()](const std::string& what) {
      return [&heard, text = what + path] { heard.push_back(text); };
    };
    observers.emplace_back(module, ModuleHooks{say("+"), say("-"), say("back+"), say("back-")});
  });
  return observers;
}

TEST(Module, IsVisitedInOrderOfConstruction) {
  Rank rank;
  Nested root(Builder{.stream = rank.stream}, 3);
  Names paths, names;
  root.visit([&](Module& module) { paths.push_back(module.path()); });
  EXPECT_EQ(paths, (Names{"", "first", "first.first", "first.second", "second"}));
  for (const Parameter* parameter : root.parameters()) names.push_back(parameter->name());
  EXPECT_EQ(names, (Names{"weight", "bias", "first.weight", "first.bias", "first.first.weight", "first.first.bias",
                          "first.second.weight", "first.second.bias", "second.weight", "second.bias"}));
  EXPECT_TRUE(root.parameters()[0]->spec().weight_decay);
  EXPECT_FALSE(root.parameters()[1]->spec().weight_decay);
}

TEST(Builder, PathsAppendNames) {
  Rank rank;
  const Builder root{.stream = rank.stream, .seed = 5};
  const Builder child = root / "layers" / "0";
  EXPECT_EQ(child.path, "layers.0");
  EXPECT_EQ(child.seed, 5U);
  EXPECT_EQ(root.path, "");
}

TEST(ModuleHooks, RunAroundForwardAndItsPartOfBackward) {
  Rank rank;
  Nested root(Builder{.stream = rank.stream, .path = "m"}, 2);
  testing::bind_gradients(rank.stream, root);
  Names heard;
  const auto observers = listen(root, heard);
  Tape tape(rank.stream);
  const Var y = root.forward(tape, tape.input(rank.normal({3}, DType::f32, "x")));
  EXPECT_EQ(heard, (Names{"+m", "+m.first", "-m.first", "+m.second", "-m.second", "-m"}));
  heard.clear();
  for (Parameter* parameter : root.parameters())
    parameter->gradient_ready = [&](Parameter& p) { heard.push_back("ready " + p.name()); };
  tape.backward({{y, {}}});
  EXPECT_EQ(heard, (Names{"back+m", "back+m.second", "ready m.second.weight", "back-m.second", "back+m.first",
                          "ready m.first.weight", "back-m.first", "ready m.weight", "back-m"}));
}

TEST(ModuleHooks, RunOnlyInForwardWithoutATape) {
  Rank rank;
  Nested root(Builder{.stream = rank.stream, .path = "m"}, 1);
  Names heard;
  const auto observers = listen(root, heard);
  Tape off(rank.stream, Tape::Mode::off);
  root.forward(off, off.constant(rank.normal({3}, DType::f32, "x")));
  EXPECT_EQ(heard, (Names{"+m", "-m"}));
}

TEST(ModuleHooks, RunAgainInRecomputation) {
  Rank rank;
  Nested root(Builder{.stream = rank.stream, .path = "m"}, 1);
  testing::bind_gradients(rank.stream, root);
  Names heard;
  const auto observers = listen(root, heard);
  Tape tape(rank.stream);
  const auto y = recomputed(tape, {tape.input(rank.normal({3}, DType::f32, "x"))},
                            [&](Tape& on, const std::vector<Var>& in) { return std::vector{root.forward(on, in[0])}; });
  EXPECT_EQ(heard, (Names{"+m", "-m"}));
  heard.clear();
  tape.backward({{y[0], {}}});
  EXPECT_EQ(heard, (Names{"+m", "-m", "back+m", "back-m"}));
}

// The first observer encloses the second, forward and backward.
TEST(ModuleHooks, NestAndEndWithTheirObserver) {
  Rank rank;
  Nested root(Builder{.stream = rank.stream, .path = "m"}, 1);
  testing::bind_gradients(rank.stream, root);
  Names heard;
  const auto say = [&](const char* what) { return [&heard, what] { heard.push_back(what); }; };
  const auto forward = [&](Tape& tape) { return root.forward(tape, tape.input(rank.normal({3}, DType::f32, "x"))); };
  std::optional<ModuleObserver> outer(ModuleObserver(root, {say("(("), say("))"), say("[["), say("]]")}));
  std::optional<ModuleObserver> inner(ModuleObserver(root, {say("("), {}, say("["), say("]")}));
  Tape both(rank.stream), one(rank.stream), none(rank.stream);
  const Var of_both = forward(both);
  EXPECT_EQ(heard, (Names{"((", "(", "))"}));
  heard.clear();
  both.backward({{of_both, {}}});
  EXPECT_EQ(heard, (Names{"[[", "[", "]", "]]"}));
  heard.clear();
  const Var of_one = forward(one);
  inner.reset();
  const ModuleObserver late(root, {say("+"), say("-"), say("back+"), say("back-")});
  heard.clear();
  one.backward({{of_one, {}}});
  EXPECT_EQ(heard, (Names{"[[", "]]"})) << "one is gone, the other has not seen the forward";
  outer.reset();
  heard.clear();
  forward(none);
  EXPECT_EQ(heard, (Names{"+", "-"}));
}

TEST(Module, ExpertStacksAreDividedEvenly) {
  struct Stack : Module {
    explicit Stack(const Builder& builder) : Module(builder.path) {
      add_expert_parameter(builder, "w", {8, 2, 3}, {Initialization::Kind::normal, 1});
    }
  };
  Rank rank;
  const Builder whole{.stream = rank.stream, .path = "experts"};
  const auto all = values(Stack(whole).parameters()[0]->value());
  std::vector<double> together;
  for (int r = 0; r < 4; ++r) {
    Builder builder = whole;
    builder.expert_ranks = 4;
    builder.expert_rank = r;
    const Stack stack(builder);
    const Parameter& part = *stack.parameters()[0];
    EXPECT_TRUE(part.spec().expert);
    EXPECT_EQ(part.region(), Region(12 * r, 12));
    const auto mine = values(part.value());
    together.insert(together.end(), mine.begin(), mine.end());
  }
  EXPECT_EQ(together, all);
}

}  // namespace
}  // namespace witan
