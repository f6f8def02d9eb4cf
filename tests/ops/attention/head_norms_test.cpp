#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/kernels/attention/heads.h"
#include "witan/ops/attention/heads.h"
#include "witan/ops/norm/norm.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

constexpr double kEps = 1e-5;

Tensor positions_of_rows(Rank& rank, int64_t B, int64_t S) {
  std::vector<int32_t> all;
  for (int64_t i = 0; i < B * S; ++i) all.push_back(static_cast<int32_t>(3 + i % S));
  return rank.tensor<int32_t>({B, S}, all);
}

Tensor table_of(Rank& rank, const Tensor& positions, const kernels::RopeArgs& rope, DType dtype) {
  if (rope.dims == 0) return {};
  const Tensor table = rank.stream.empty({positions.elements(), rope.dims}, accumulator(dtype));
  kernels::rotary_table(rank.stream, table, positions, rope);
  return table;
}

const std::vector<kernels::RopeArgs> kRopes = {{.dims = 0}, {.dims = 6}, {.dims = 4}, {.dims = 4, .interleaved = true}};

TEST(HeadNorms, GradientsMatchDifferences) {
  for (const kernels::RopeArgs& rope : kRopes) {
    Rank rank;
    const Tensor table = table_of(rank, positions_of_rows(rank, 2, 3), rope, DType::f64);
    testing::gradcheck(rank, "rmsnorm_heads",
                       [&](Tape& tape, const std::vector<Var>& in) {
                         const auto [q, k] = ops::rmsnorm_heads(tape, in[0], in[1], in[2], in[3], table, rope, kEps);
                         return std::vector{q, k};
                       },
                       {rank.normal({2, 3, 4, 6}, DType::f64, "q"), rank.normal({2, 3, 2, 6}, DType::f64, "k"),
                        rank.normal({6}, DType::f64, "wq"), rank.normal({6}, DType::f64, "wk")});
  }
}

// For every dtype, with the intermediate roundings.
TEST(HeadNorms, HaveTheBitsOfANormAndARotation) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const kernels::RopeArgs& rope : kRopes) {
      Rank rank;
      const Tensor positions = positions_of_rows(rank, 2, 9), table = table_of(rank, positions, rope, dtype);
      const std::vector<Tensor> inputs = {rank.normal({2, 9, 4, 6}, dtype, "q"), rank.normal({2, 9, 2, 6}, dtype, "k"),
                                          rank.normal({6}, dtype, "wq"), rank.normal({6}, dtype, "wk")};
      const auto run = [&](bool together) {
        Tape tape(rank.stream);
        std::vector<Var> in;
        for (const Tensor& input : inputs) in.push_back(tape.input(input));
        const auto apart = [&](const Var& x, const Var& w) {
          const Var normed = ops::rmsnorm(tape, x, w, kEps);
          if (rope.dims == 0) return normed;
          return ops::rope(tape, normed, positions, rope);
        };
        const auto [q, k] = together ? ops::rmsnorm_heads(tape, in[0], in[1], in[2], in[3], table, rope, kEps)
                                     : ops::NormedHeads{apart(in[0], in[2]), apart(in[1], in[3])};
        tape.backward({{q, rank.normal(q.shape(), dtype, "dq")}, {k, rank.normal(k.shape(), dtype, "dk")}});
        std::vector<std::vector<double>> all = {values(q.value()), values(k.value())};
        for (const Var& input : in) all.push_back(values(tape.gradient(input)));
        return all;
      };
      const auto together = run(true), apart = run(false);
      for (size_t i = 0; i < apart.size(); ++i) EXPECT_EQ(together[i], apart[i]) << dtype << ", tensor " << i;
    }
}

TEST(HeadNorms, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const Var q = tape.input(rank.normal({1, 2, 4, 6}, DType::f64, "q")),
            w = tape.input(rank.normal({5}, DType::f64, "w"));
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::rmsnorm_heads(tape, q, q, w, w, {}, {}, kEps); }),
            "rmsnorm_heads: the weight of q must be float64 [hd=6], got float64 [5]");
}

}  // namespace
}  // namespace witan
