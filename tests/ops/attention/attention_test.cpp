#include "witan/ops/attention/attention.h"

#include "support/dropout.h"
#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;

void check(const Shape& q, int64_t G, const std::vector<int32_t>& ids = {}, double dropout = 0, int64_t window = 0,
           int64_t hd_v = 0) {
  Rank rank;
  const ops::AttentionArgs args{.scale = 0.4, .dropout = testing::dropout_of(rank, dropout), .window = window};
  const int64_t B = q[0], S = q[1];
  const Tensor sequence_ids = ids.empty() ? Tensor() : rank.tensor<int32_t>({B, S}, ids);
  const Shape k = q.with(2, G);
  gradcheck(rank, "attention",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::attention(tape, in[0], in[1], in[2], sequence_ids, args)};
            },
            {rank.normal(q, DType::f64, "q"), rank.normal(k, DType::f64, "k"),
             rank.normal(hd_v > 0 ? k.with(3, hd_v) : k, DType::f64, "v")});
}

TEST(AttentionSinks, GradientsMatchDifferences) {
  for (const int64_t window : {0, 2})
    for (const double dropout : {0.0, 0.3}) {
      Rank rank;
      const ops::AttentionArgs args{.scale = 0.4, .dropout = testing::dropout_of(rank, dropout), .window = window};
      gradcheck(rank, "attention",
                [&](Tape& tape, const std::vector<Var>& in) {
                  return std::vector{ops::attention(tape, in[0], in[1], in[2], {}, args, in[3])};
                },
                {rank.normal({2, 5, 4, 3}, DType::f64, "q"), rank.normal({2, 5, 2, 3}, DType::f64, "k"),
                 rank.normal({2, 5, 2, 6}, DType::f64, "v"), rank.normal({4}, DType::f64, "sinks")});
    }
}

// Softmax over the keys and the sink, of which only the keys have values, computed in float64.
TEST(AttentionSinks, AddALogitToTheSoftmax) {
  Rank rank;
  constexpr int64_t S = 6, H = 2, hd = 3;
  const Tensor q = rank.normal({1, S, H, hd}, DType::f64, "q"), k = rank.normal({1, S, 1, hd}, DType::f64, "k"),
               v = rank.normal({1, S, 1, hd}, DType::f64, "v"), sinks = rank.tensor<double>({H}, {0.7, -40});
  Tape off(rank.stream, Tape::Mode::off);
  const auto run = [&](const Var& with) {
    return testing::values(
        ops::attention(off, off.constant(q), off.constant(k), off.constant(v), {}, {.scale = 0.4}, with).value());
  };
  const auto got = run(off.constant(sinks)), without = run({});
  for (int64_t i = 0; i < S; ++i)
    for (int64_t h = 0; h < H; ++h) {
      std::vector<double> weights;
      double sum = std::exp(sinks.data<double>()[h]);
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < hd; ++d) dot += q.data<double>()[(i * H + h) * hd + d] * k.data<double>()[j * hd + d];
        weights.push_back(std::exp(0.4 * dot));
        sum += weights.back();
      }
      for (int64_t d = 0; d < hd; ++d) {
        double expected = 0;
        for (int64_t j = 0; j <= i; ++j) expected += weights[size_t(j)] / sum * v.data<double>()[j * hd + d];
        const auto at = static_cast<size_t>((i * H + h) * hd + d);
        EXPECT_NEAR(got[at], expected, 1e-14);
        EXPECT_NEAR(got[at], h == 1 ? without[at] : got[at], 1e-14) << "a sink far below all logits takes nothing";
      }
    }
}

TEST(AttentionSinks, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const Var q = tape.input(rank.normal({1, 2, 4, 3}, DType::f64, "q"));
  EXPECT_EQ(test::message_of<ShapeError>(
                [&] { ops::attention(tape, q, q, q, {}, {}, tape.input(rank.normal({3}, DType::f64, "sinks"))); }),
            "attention: sinks must be [H=4], got [3]");
}

TEST(Attention, GradientsMatchDifferences) {
  check({1, 1, 1, 1}, 1);
  check({2, 1, 2, 3}, 2);
  check({2, 5, 4, 3}, 2);   // two query heads per key head
  check({1, 5, 3, 2}, 1);   // one key head for all
  check({1, 67, 2, 2}, 1);  // more than a tile of queries and of keys
}

TEST(Attention, GradientsOfSeveralSequencesMatchDifferences) {
  check({2, 6, 4, 2}, 2, {0, 0, 0, 1, 1, 2, 5, 5, 5, 5, 5, 5});
  check({1, 6, 2, 2}, 2, {3, 1, 3, 1, 1, 3});  // interleaved
  std::vector<int32_t> ids(67, 0);
  std::fill(ids.begin() + 30, ids.end(), 1);
  std::fill(ids.begin() + 65, ids.end(), 2);
  check({1, 67, 2, 2}, 1, ids);
}

TEST(Attention, GradientsWithDropoutMatchDifferences) {
  check({2, 5, 4, 3}, 2, {}, 0.3);
  check({1, 67, 2, 2}, 1, {}, 0.6);
  check({2, 6, 4, 2}, 2, {0, 0, 0, 1, 1, 2, 5, 5, 5, 5, 5, 5}, 0.5);
}

TEST(Attention, GradientsOfWindowsMatchDifferences) {
  check({2, 5, 4, 3}, 2, {}, 0, 1);
  check({2, 5, 4, 3}, 2, {}, 0, 3);
  check({1, 67, 2, 2}, 1, {}, 0, 20);
  check({1, 67, 2, 2}, 1, {}, 0.3, 64);
  check({2, 6, 4, 2}, 2, {0, 0, 0, 1, 1, 2, 5, 5, 5, 5, 5, 5}, 0, 2);
}

TEST(Attention, GradientsOfOtherValueSizesMatchDifferences) {
  check({2, 5, 4, 3}, 2, {}, 0, 0, 1);
  check({2, 5, 4, 3}, 2, {}, 0, 0, 9);
  check({1, 67, 2, 2}, 1, {}, 0.3, 20, 3);
}

TEST(Attention, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const auto var = [&](const Shape& shape, DType dtype = DType::f32) {
    return tape.input(rank.normal(shape, dtype, "x"));
  };
  const auto message = [&](const Var& q, const Var& k, const Var& v, const Tensor& ids = {}) {
    return test::message_of<ShapeError>([&] { ops::attention(tape, q, k, v, ids, {}); });
  };
  const Var q = var({2, 3, 4, 8}), k = var({2, 3, 2, 8});
  EXPECT_EQ(message(var({2, 3, 32}), k, k), "attention: q must be [B, S, H, hd], got [2, 3, 32]");
  EXPECT_EQ(message(q, var({2, 3, 16}), k), "attention: k must be [B, S, G, hd], got [2, 3, 16]");
  EXPECT_EQ(message(q, var({2, 4, 2, 8}), k), "attention: k must be [B=2, S=3, G, hd=8] as q is, got [2, 4, 2, 8]");
  EXPECT_EQ(message(q, k, var({2, 3, 4, 8})), "attention: v must be [B=2, S=3, G=2, hd_v] as k is, got [2, 3, 4, 8]");
  const Var three = var({2, 3, 3, 8});
  EXPECT_EQ(message(q, three, three), "attention: the 4 query heads must be a multiple of the 3 key heads");
  EXPECT_EQ(message(q, k, var({2, 3, 2, 8}, DType::f64)), "attention: v is float64 but q is float32");
  EXPECT_EQ(message(q, k, k, rank.tensor<int32_t>({6}, {0, 0, 0, 0, 0, 0})),
            "attention: sequence_ids must be [B=2, S=3], got [6]");
  EXPECT_EQ(message(q, k, k, rank.normal({2, 3}, DType::f32, "ids")),
            "attention: sequence_ids must be int32, got float32");
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::attention(tape, q, k, k, {}, {.window = -1}); }),
            "attention: a window of -1 positions; give how many a query sees, or 0 for all up to its own");
}

TEST(Attention, AcceptsNoTokens) {
  Rank rank;
  Tape tape(rank.stream);
  const Var q = tape.input(rank.stream.empty({0, 3, 2, 4}, DType::f32));
  const Var y = ops::attention(tape, q, q, q, {}, {});
  tape.backward({{y, {}}});
  EXPECT_EQ(tape.gradient(q).elements(), 0);
}

}  // namespace
}  // namespace witan
