#include "witan/nn/buffer.h"

#include <gtest/gtest.h>

#include "support/module.h"
#include "witan/autograd/recompute.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;
using Rule = BufferSpec::Rule;

// Doubles its input, and counts its forwards and their elements.
class Counting : public Module {
 public:
  explicit Counting(const Builder& builder)
      : Module(builder.path),
        weight_(add_parameter(builder, "weight", {3}, {Initialization::Kind::ones})),
        counts(add_buffer(builder, "counts", {2}, DType::i64, 0, Rule::summed)),
        bias(add_buffer(builder, "bias", {3}, DType::f32, 0.5, Rule::replicated)) {}

  Var forward(Tape& tape, const Var& x) {
    const Tensor found = tape.stream().empty({2}, DType::i64);
    found.data<int64_t>()[0] = 1;
    found.data<int64_t>()[1] = x.shape().elements();
    counts.add(tape, found);
    return ops::scale(tape, ops::add(tape, x, tape.parameter(weight_)), 2);
  }

 private:
  Parameter& weight_;

 public:
  Buffer &counts, &bias;
};

std::vector<int64_t> integers(const Tensor& tensor) {
  const auto span = tensor.span<int64_t>();
  return {span.begin(), span.end()};
}

struct Trained {
  Trained() {
    share = rank.stream.zeros({2}, DType::i64);
    module.counts.bind_share(share);
    testing::bind_gradients(rank.stream, module);
  }
  Rank rank;
  Counting module{Builder{.stream = rank.stream, .path = "layers.0.m"}};
  Tensor share;
};

TEST(Buffer, IsNamedLikeAParameter) {
  Rank rank;
  struct Outer : Module {
    explicit Outer(const Builder& builder) : Module(builder.path), inner(builder / "inner") {
      add_buffer(builder, "seen", {}, DType::f64, -1.5, Rule::replicated);
      add_child(inner);
    }
    Counting inner;
  };
  const Outer outer(Builder{.stream = rank.stream, .path = "m"}.in_chunk(1));
  std::vector<std::string> names;
  for (const Buffer* buffer : outer.buffers()) names.push_back(buffer->name());
  EXPECT_EQ(names, (std::vector<std::string>{"m.seen", "m.inner.counts", "m.inner.bias"}));
  EXPECT_EQ(outer.parameters().size(), 1U);
  EXPECT_EQ(values(outer.buffers()[0]->value()), std::vector{-1.5});
  EXPECT_EQ(integers(outer.buffers()[1]->value()), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(values(outer.buffers()[2]->value()), (std::vector{0.5, 0.5, 0.5}));
  EXPECT_EQ(outer.buffers()[1]->spec().chunk, 1);
}

TEST(Buffer, StartsWithItsInitialValueInEveryDtype) {
  Rank rank;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    EXPECT_EQ(values(Buffer(rank.stream, {.name = "b", .shape = {2}, .dtype = dtype, .initial = 3}).value()),
              (std::vector{3.0, 3.0}));
  const Buffer wide(rank.stream, {.name = "b", .shape = {2}, .dtype = DType::i64, .initial = 3});
  EXPECT_EQ(integers(wide.value()), (std::vector<int64_t>{3, 3}));
  const Buffer narrow(rank.stream, {.name = "b", .shape = {1}, .dtype = DType::i32, .initial = -3});
  EXPECT_EQ(narrow.value().span<int32_t>()[0], -3);
}

TEST(Buffer, CountsEveryTrainingForward) {
  Trained on;
  for (int i = 0; i < 3; ++i) {
    Tape tape(on.rank.stream);
    const Var y = on.module.forward(tape, tape.input(on.rank.normal({3}, DType::f32, "x")));
    tape.backward({{y, {}}});
  }
  EXPECT_EQ(integers(on.share), (std::vector<int64_t>{3, 9}));
  EXPECT_EQ(integers(on.module.counts.value()), (std::vector<int64_t>{0, 0})) << "until shares are summed";
}

TEST(Buffer, CountsNoForwardWithoutABackward) {
  Trained on;
  Tape off(on.rank.stream, Tape::Mode::off);
  on.module.forward(off, off.constant(on.rank.normal({3}, DType::f32, "x")));
  EXPECT_EQ(integers(on.share), (std::vector<int64_t>{0, 0}));
}

TEST(Buffer, CountsARecomputedSegmentOnce) {
  Trained on;
  const auto forward = [&](Tape& tape, const std::vector<Var>& in) { return on.module.forward(tape, in[0]); };
  const auto nested = [&](Tape& tape, const std::vector<Var>& in) {
    return recomputed(tape, in, [&](Tape& inner, const std::vector<Var>& x) { return std::vector{forward(inner, x)}; });
  };
  Tape tape(on.rank.stream);
  Var x = tape.input(on.rank.normal({3}, DType::f32, "x"));
  x = recomputed(tape, {x}, nested)[0];
  x = rematerialised(tape, {x}, forward);
  const Var y = ops::scale(tape, x, 3);
  tape.backward({{y, {}}});
  EXPECT_EQ(integers(on.share), (std::vector<int64_t>{2, 6}));

  Tape off(on.rank.stream, Tape::Mode::off);
  recomputed(off, {off.constant(on.rank.normal({3}, DType::f32, "x"))}, nested);
  EXPECT_EQ(integers(on.share), (std::vector<int64_t>{2, 6})) << "an evaluation of a model that recomputes";
}

TEST(Buffer, CountsNothingWithoutAShare) {
  Rank rank;
  Counting module(Builder{.stream = rank.stream, .path = "m"});
  Tape tape(rank.stream);
  module.forward(tape, tape.input(rank.normal({3}, DType::f32, "x")));
  EXPECT_FALSE(module.counts.share().defined());
}

}  // namespace
}  // namespace witan
