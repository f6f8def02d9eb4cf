#include "witan/autograd/concurrent.h"

#include <gtest/gtest.h>

#include "autograd/small_ops.h"
#include "support/gradcheck.h"

namespace witan {
namespace {

using testing::plus;
using testing::Rank;
using testing::TestLeaf;
using testing::values;

struct RankWithSide : Rank {
  Stream side{stream, 512};
};

// a, b -> a + a on the side stream, b + b on the main one, and their sum; or sequentially.
std::vector<Var> two_parts(Tape& tape, Stream* side, const Var& a, const Var& b) {
  Var of_a, of_b;
  const auto beside = [&](Tape& on) { of_a = plus(on, a, a); };
  const auto meanwhile = [&](Tape& on) { of_b = plus(on, b, b); };
  if (side != nullptr) {
    concurrently(tape, *side, beside, meanwhile);
  } else {
    beside(tape);
    meanwhile(tape);
  }
  return {plus(tape, of_a, of_b)};
}

TEST(Concurrently, RunsPartsOnTheirStreams) {
  RankWithSide rank;
  Tape tape(rank.stream);
  const Var a = tape.input(rank.normal({3}, DType::f64, "a")), b = tape.input(rank.normal({3}, DType::f64, "b"));
  std::vector<Stream*> forward, backward;
  const auto part = [&](Tape& on, const Var& x) {
    forward.push_back(&on.stream());
    return on.record("part", x.value(), {x}, [&, slot = on.slot(x)](Backward& from, const Tensor& dy) {
      backward.push_back(&from.stream());
      from.add(slot, dy);
    });
  };
  Var x, y;
  concurrently(
      tape, rank.side, [&](Tape& on) { x = part(on, a); }, [&](Tape& on) { y = part(on, b); });
  const Var z = part(tape, plus(tape, x, y));
  tape.backward({{z, {}}});
  Stream *const main = &rank.stream, *const side = &rank.side;
  EXPECT_EQ(forward, (std::vector{side, main, main}));
  EXPECT_EQ(backward, (std::vector{main, main, side}));
  EXPECT_EQ(&tape.stream(), main);
  EXPECT_EQ(values(tape.gradient(a)), std::vector<double>(3, 1));
}

TEST(Concurrently, HasTheBitsOfSequentialExecution) {
  RankWithSide rank;
  const auto run = [&](Stream* side) {
    Tape tape(rank.stream);
    const Var a = tape.input(rank.normal({5}, DType::f32, "a")), b = tape.input(rank.normal({5}, DType::f32, "b"));
    const Var y = two_parts(tape, side, a, b)[0];
    tape.backward({{y, rank.normal({5}, DType::f32, "dy")}});
    return std::vector{values(y.value()), values(tape.gradient(a)), values(tape.gradient(b))};
  };
  const auto apart = run(nullptr);
  EXPECT_EQ(run(&rank.side), apart);
  EXPECT_EQ(run(&rank.stream), apart) << "on one stream";
}

// The streams do not wait for each other, so memory freed by one may still be in use by the other.
TEST(Concurrently, ReusesMemoryAfterBothParts) {
  RankWithSide rank;
  Tape tape(rank.stream);
  Tensor before = rank.stream.empty({64}, DType::f64);
  const void* const first = before.raw();
  const void *second = nullptr, *third = nullptr;
  concurrently(
      tape, rank.side, [&](Tape&) { before = {}; },
      [&](Tape& on) { second = on.stream().empty({64}, DType::f64).raw(); });
  third = rank.stream.empty({64}, DType::f64).raw();
  EXPECT_NE(second, first);
  EXPECT_EQ(third, first);
}

TEST(Concurrently, HoldsMemoryOfTheBackward) {
  RankWithSide rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({64}, DType::f64, "x"));
  std::vector<const void*> taken;
  const auto part = [&](Tape& on, const Var& of) {
    return on.record("part", of.value(), {of}, [&, slot = on.slot(of)](Backward& b, const Tensor& dy) {
      taken.push_back(b.stream().empty({64}, DType::f64).raw());  // freed at once
      b.add(slot, dy);
    });
  };
  Var y, z;
  concurrently(
      tape, rank.side, [&](Tape& on) { y = part(on, x); }, [&](Tape& on) { z = part(on, x); });
  const Var last = part(tape, plus(tape, y, z));
  tape.backward({{last, {}}});
  ASSERT_EQ(taken.size(), 3U);
  EXPECT_NE(taken[1], taken[2]);
}

// When a gradient is complete within a part, it may not have been computed yet although the host has queued everything.
TEST(Concurrently, AnnouncesReadyGradientsAfterBothParts) {
  struct Told : TestLeaf {
    using TestLeaf::TestLeaf;
    void on_gradient_ready() override { told(); }
    std::function<void()> told;
  };
  RankWithSide rank;
  Told leaf(rank.stream, rank.normal({3}, DType::f64, "w"));
  Tape tape(rank.stream);
  const Var b = tape.input(rank.normal({3}, DType::f64, "b"));
  bool both = false, ready = false;
  leaf.told = [&] {
    EXPECT_TRUE(both);
    ready = true;
  };
  Var x, y;
  concurrently(
      tape, rank.side,
      [&](Tape& on) {
        x = on.record("first", b.value(), {b}, [&, slot = on.slot(b)](Backward& from, const Tensor& dy) {
          both = true;  // the last of the backward's nodes
          from.add(slot, dy);
        });
        x = plus(on, x, on.parameter(leaf));
      },
      [&](Tape& on) { y = plus(on, b, b); });
  tape.backward({{plus(tape, x, y), {}}});
  EXPECT_TRUE(ready);
}

}  // namespace
}  // namespace witan
