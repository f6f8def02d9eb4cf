#include <gmock/gmock.h>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/attention/heads.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;

constexpr int64_t B = 2, S = 3, H = 3, n = 3, R = 4, hd_v = 5;

ops::LatentHeadSizes sizes_of(bool rotates, bool interleaved) {
  return {H, n, R, hd_v, {100, rotates ? R : 0, interleaved, false}};
}

Tensor table_of(Rank& rank, const kernels::RopeArgs& rope) {
  if (rope.dims == 0) return {};
  const Tensor table = rank.stream.empty({B * S, rope.dims}, DType::f64);
  kernels::rotary_table(rank.stream, table, rank.tensor<int32_t>({B, S}, {0, 1, 2, 4, 5, 9}), rope);
  return table;
}

TEST(LatentHeads, GradientsMatchDifferences) {
  Rank rank;
  for (const auto& [rotates, interleaved] : {std::pair{true, false}, std::pair{true, true}, std::pair{false, false}}) {
    const ops::LatentHeadSizes sizes = sizes_of(rotates, interleaved);
    const Tensor table = table_of(rank, sizes.rope);
    gradcheck(rank, "latent_heads",
              [&](Tape& tape, const std::vector<Var>& in) {
                const auto heads = ops::latent_heads(tape, in[0], in[1], in[2], table, sizes);
                return std::vector{heads.q, heads.k, heads.v};
              },
              {rank.normal({B, S, H * (n + R)}, DType::f64, "q"), rank.normal({B, S, H * (n + hd_v)}, DType::f64, "kv"),
               rank.normal({B, S, R}, DType::f64, "key")});
  }
}

TEST(LatentHeads, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const ops::LatentHeadSizes sizes = sizes_of(true, false);
  const Tensor table = table_of(rank, sizes.rope);
  const auto refused = [&](const Shape& q, const Shape& kv, const Shape& key, const Tensor& angles) {
    const auto input = [&](const Shape& shape) { return tape.input(rank.normal(shape, DType::f64, "x")); };
    return message_of<ShapeError>([&] { ops::latent_heads(tape, input(q), input(kv), input(key), angles, sizes); });
  };
  const Shape q{B, S, H * (n + R)}, kv{B, S, H * (n + hd_v)}, key{B, S, R};
  EXPECT_EQ(refused({B, S, 20}, kv, key, table),
            "latent_heads: q must be float64 [2, 3, 21] and contiguous, got float64 [2, 3, 20]");
  EXPECT_EQ(refused(q, {B, S, 20}, key, table),
            "latent_heads: kv must be float64 [2, 3, 24] and contiguous, got float64 [2, 3, 20]");
  EXPECT_EQ(refused(q, kv, {B, 2, R}, table),
            "latent_heads: rope_key must be float64 [2, 3, 4] and contiguous, got float64 [2, 2, 4]");
  EXPECT_THAT(refused(q, kv, key, {}), ::testing::StartsWith("latent_heads: the table of angles must be [6, 4]"));
}

TEST(SplitColumns, SplitsColumnsAndJoinsGradients) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<double>({1, 2, 3}, {1, 2, 3, 4, 5, 6}));
  const auto [left, right] = ops::split_columns(tape, x, 2);
  EXPECT_EQ(left.shape(), Shape({1, 2, 2}));
  EXPECT_EQ(testing::values(left.value()), (std::vector<double>{1, 2, 4, 5}));
  EXPECT_EQ(testing::values(right.value()), (std::vector<double>{3, 6}));
  tape.backward({{right, rank.tensor<double>({1, 2, 1}, {7, 8})}});
  EXPECT_EQ(testing::values(tape.gradient(x)), (std::vector<double>{0, 0, 7, 0, 0, 8}));
  gradcheck(rank, "split_columns",
            [&](Tape& on, const std::vector<Var>& in) {
              const auto [a, b] = ops::split_columns(on, in[0], 3);
              return std::vector{a, b};
            },
            {rank.normal({4, 5}, DType::f64, "x")});
  for (const int64_t first : {0, 3})
    EXPECT_THAT(message_of<ShapeError>([&] { ops::split_columns(tape, x, first); }),
                ::testing::StartsWith("split_columns: "));
}

}  // namespace
}  // namespace witan
