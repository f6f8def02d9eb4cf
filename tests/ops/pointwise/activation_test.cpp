#include "witan/ops/pointwise/activation.h"

#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;

using Activation = std::function<Var(Tape&, const Var& h, const Var& row_weight, const RowGroups* groups)>;

Var gelu_exact(Tape& tape, const Var& h, const Var& s, const RowGroups* groups) {
  return ops::gelu(tape, h, s, groups);
}
Var geglu_exact(Tape& tape, const Var& h, const Var& s, const RowGroups* groups) {
  return ops::geglu(tape, h, s, groups);
}
Var gelu_tanh(Tape& tape, const Var& h, const Var& s, const RowGroups* groups) {
  return ops::gelu(tape, h, s, groups, GeluKind::tanh);
}

TEST(SwiGlu, GradientsMatchDifferences) {
  Rank rank;
  for (const Shape& shape : {Shape{3, 10}, Shape{1, 2}, Shape{2, 2, 34}}) {
    const Tensor h = rank.normal(shape, DType::f64, "h"), s = rank.normal({shape.as_rows().first}, DType::f64, "s");
    gradcheck(rank, "swiglu",
              [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::swiglu(tape, in[0], in[1])}; },
              {h, s});
    gradcheck(rank, "swiglu",
              [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::swiglu(tape, in[0], {})}; }, {h});
  }
}

TEST(ClampedSwiglu, GradientsMatchDifferences) {
  Rank rank;
  for (const SwigluForm& form : {SwigluForm{7, 1.702, 1}, SwigluForm{0.75, 1, 0}, SwigluForm{0, 1.702, 0.5}}) {
    const Tensor h = rank.normal({3, 10}, DType::f64, "h"), s = rank.normal({3}, DType::f64, "s");
    gradcheck(rank, "clamped_swiglu",
              [form](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::clamped_swiglu(tape, in[0], in[1], nullptr, form)};
              },
              {h, s});
  }
}

TEST(SquaredRelu, GradientsMatchDifferences) {
  Rank rank;
  const Tensor h = rank.normal({3, 7}, DType::f64, "h"), s = rank.normal({3}, DType::f64, "s");
  gradcheck(rank, "squared_relu",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::squared_relu(tape, in[0], in[1])}; },
            {h, s});
  gradcheck(rank, "squared_relu",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::squared_relu(tape, in[0], {})}; },
            {h});
}

TEST(SquaredReglu, GradientsMatchDifferences) {
  Rank rank;
  const Tensor h = rank.normal({3, 10}, DType::f64, "h"), s = rank.normal({3}, DType::f64, "s");
  gradcheck(rank, "squared_reglu",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::squared_reglu(tape, in[0], in[1])}; },
            {h, s});
  gradcheck(rank, "squared_reglu",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::squared_reglu(tape, in[0], {})}; },
            {h});
}

TEST(Silu, GradientsMatchDifferences) {
  Rank rank;
  const Tensor h = rank.normal({3, 7}, DType::f64, "h"), s = rank.normal({3}, DType::f64, "s");
  gradcheck(rank, "silu",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::silu(tape, in[0], in[1])}; }, {h, s});
  gradcheck(rank, "silu",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::silu(tape, in[0], {})}; }, {h});
}

TEST(Gelu, GradientsMatchDifferences) {
  Rank rank;
  for (const GeluKind kind : {GeluKind::exact, GeluKind::tanh}) {
    const Tensor h = rank.normal({3, 7}, DType::f64, "h"), s = rank.normal({3}, DType::f64, "s");
    gradcheck(rank, "gelu",
              [kind](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::gelu(tape, in[0], in[1], nullptr, kind)};
              },
              {h, s});
    gradcheck(rank, "gelu",
              [kind](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::gelu(tape, in[0], {}, nullptr, kind)};
              },
              {h});
  }
}

TEST(Geglu, GradientsMatchDifferences) {
  Rank rank;
  for (const GeluKind kind : {GeluKind::exact, GeluKind::tanh})
    for (const Shape& shape : {Shape{3, 10}, Shape{1, 2}, Shape{2, 2, 34}}) {
      const Tensor h = rank.normal(shape, DType::f64, "h"), s = rank.normal({shape.as_rows().first}, DType::f64, "s");
      gradcheck(rank, "geglu",
                [kind](Tape& tape, const std::vector<Var>& in) {
                  return std::vector{ops::geglu(tape, in[0], in[1], nullptr, kind)};
                },
                {h, s});
      gradcheck(rank, "geglu",
                [kind](Tape& tape, const std::vector<Var>& in) {
                  return std::vector{ops::geglu(tape, in[0], {}, nullptr, kind)};
                },
                {h});
    }
}

// x [N, D] -> rows `rows` of a pool [capacity, D]; everything else is NaN, in both directions.
Var into_pool(Tape& tape, const Var& x, const std::vector<int64_t>& rows, int64_t capacity) {
  const auto copy = [rows](Stream& stream, const Tensor& from, int64_t to_rows, bool into) {
    const int64_t D = from.elements() / from.size(0);
    Tensor to = stream.empty(from.shape().with(0, to_rows), from.dtype());
    std::ranges::fill(to.span<double>(), std::nan(""));
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t a = static_cast<int64_t>(i), b = rows[i];
      std::copy_n(from.data<double>() + (into ? a : b) * D, D, to.data<double>() + (into ? b : a) * D);
    }
    return to;
  };
  return tape.record("into_pool", copy(tape.stream(), x.value(), capacity, true), {x},
                     [x = tape.slot(x), copy, n = x.size(0)](Backward& b, const Tensor& dy) {
                       b.add(x, copy(b.stream(), dy, n, false));
                     });
}

// The inverse: rows of a pool, in order.
Var out_of_pool(Tape& tape, const Var& pool, const std::vector<int64_t>& rows) {
  const auto move = [rows](const Tensor& packed, const Tensor& wide, bool out) {
    const int64_t D = wide.elements() / wide.size(0);
    for (size_t i = 0; i < rows.size(); ++i) {
      double *a = packed.data<double>() + static_cast<int64_t>(i) * D, *b = wide.data<double>() + rows[i] * D;
      std::copy_n(out ? b : a, D, out ? a : b);
    }
  };
  const Tensor y = tape.stream().empty(pool.shape().with(0, static_cast<int64_t>(rows.size())), pool.dtype());
  move(y, pool.value(), true);
  return tape.record("out_of_pool", y, {pool},
                     [slot = tape.slot(pool), shape = pool.shape(), move](Backward& b, const Tensor& dy) {
                       const Tensor dpool = b.stream().empty(shape, dy.dtype());
                       std::ranges::fill(dpool.span<double>(), std::nan(""));
                       move(dy, dpool, false);
                       b.add(slot, dpool);
                     });
}

TEST(Activation, GradientsWithinGroupsMatchDifferences) {
  Rank rank;
  const RowGroups groups{rank.tensor<int64_t>({3}, {5, 0, 2}), rank.tensor<int64_t>({3}, {2, 0, 1})};
  const std::vector<int64_t> rows = {2, 5, 6};
  const Tensor h = rank.normal({3, 4}, DType::f64, "h"), s = rank.normal({3}, DType::f64, "s");
  const auto within = [&](const Activation& op) -> testing::Function {
    return [&, op](Tape& tape, const std::vector<Var>& in) {
      const Var y = op(tape, into_pool(tape, in[0], rows, 8), into_pool(tape, in[1], rows, 8), &groups);
      return std::vector{out_of_pool(tape, y, rows)};
    };
  };
  gradcheck(rank, "swiglu", within(ops::swiglu), {h, s});
  gradcheck(rank, "geglu", within(geglu_exact), {h, s});
  gradcheck(rank, "gelu", within(gelu_exact), {h, s});
  gradcheck(rank, "gelu", within(gelu_tanh), {h, s});
  gradcheck(rank, "squared_relu", within(ops::squared_relu), {h, s});
  gradcheck(rank, "squared_reglu", within(ops::squared_reglu), {h, s});
  gradcheck(rank, "silu", within(ops::silu), {h, s});
  gradcheck(rank, "clamped_swiglu", within([](Tape& tape, const Var& of, const Var& by, const RowGroups* which) {
              return ops::clamped_swiglu(tape, of, by, which, {0.75, 1.702, 1});
            }),
            {h, s});
}

TEST(Activation, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const Var h = tape.input(rank.normal({2, 6}, DType::bf16, "h"));
  const auto weight = [&](const Shape& shape, DType dtype) { return tape.input(rank.normal(shape, dtype, "s")); };
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::swiglu(tape, tape.input(rank.normal({2, 5}, DType::f32, "h")), {});
            }),
            "swiglu: the last dim holds [gate | up] and must be even, got [2, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::geglu(tape, tape.input(rank.normal({2, 5}, DType::f32, "h")), {});
            }),
            "geglu: the last dim holds [gate | up] and must be even, got [2, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::squared_reglu(tape, tape.input(rank.normal({2, 5}, DType::f32, "h")), {});
            }),
            "squared_reglu: the last dim holds [gate | up] and must be even, got [2, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::swiglu(tape, h, weight({3}, DType::f32)); }),
            "swiglu: row_weight must be [rows of h=2], got [3]");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::gelu(tape, h, weight({2}, DType::bf16)); }),
            "gelu: row_weight must be float32 for h of bfloat16, got bfloat16");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::gelu(tape, tape.constant(rank.tensor<int32_t>({1}, {0})), {}); }),
            "gelu: h must be floating and have a dim, got int32 [1]");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::gelu(tape, tape.input(h.value().transpose(0, 1)), {}); }),
            "gelu: h must be contiguous");
  const RowGroups uneven{rank.tensor<int64_t>({1}, {0}), rank.tensor<int64_t>({2}, {0, 0})};
  EXPECT_EQ(message_of<ShapeError>([&] { ops::gelu(tape, h, {}, &uneven); }),
            "gelu: groups must be two tensors [E] int64, got [1] and [2]");
}

TEST(Activation, AcceptsNoRows) {
  Rank rank;
  Tape tape(rank.stream);
  const Var h = tape.input(rank.stream.empty({0, 4}, DType::f32)), s = tape.input(rank.stream.empty({0}, DType::f32));
  tape.backward({{ops::swiglu(tape, h, s), {}}});
  EXPECT_EQ(tape.gradient(h).shape(), (Shape{0, 4}));
  EXPECT_EQ(tape.gradient(s).shape(), (Shape{0}));
}

}  // namespace
}  // namespace witan
