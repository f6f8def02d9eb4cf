#include "witan/ops/attention/heads.h"

#include <gmock/gmock.h>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

using namespace witan::testing;

constexpr int64_t B = 2, S = 3, D = 5, H = 4, G = 2, hd = 6, hd_v = 3;

Tensor positions_of(Rank& rank) {
  return rank.tensor<int32_t>({B, S}, {0, 1, 2, 4, 5, 9});
}

ops::HeadSizes sizes_of(int64_t dims, bool interleaved, int64_t values = hd) {
  return {H, G, hd, values, {100, dims, interleaved, false}};
}

Tensor table_of(Rank& rank, const kernels::RopeArgs& rope, DType dtype = DType::f64) {
  if (rope.dims == 0) return {};
  const Tensor table = rank.stream.empty({B * S, rope.dims}, dtype);
  kernels::rotary_table(rank.stream, table, positions_of(rank), rope);
  return table;
}

TEST(Heads, GradientsMatchDifferences) {
  Rank rank;
  for (const int64_t dims : {0, 4, 6})
    for (const auto& [interleaved, of_values] :
         {std::pair{false, hd}, std::pair{true, hd}, std::pair{false, hd_v}, std::pair{true, hd + 1}}) {
      const ops::HeadSizes sizes = sizes_of(dims, interleaved, of_values);
      const Tensor table = table_of(rank, sizes.rope);
      gradcheck(rank, "project_heads",
                [&](Tape& tape, const std::vector<Var>& in) {
                  const auto heads = ops::project_heads(tape, in[0], {in[1], in[2], in[3]}, table, sizes);
                  return std::vector{heads.q, heads.k, heads.v};
                },
                {rank.normal({B, S, D}, DType::f64, "x"), rank.normal({H * hd, D}, DType::f64, "q"),
                 rank.normal({G * hd, D}, DType::f64, "k"), rank.normal({G * of_values, D}, DType::f64, "v")});
    }
}

// Adjacent weights are one product, separate ones are three; both equal linear and rope one after the other.
TEST(Heads, EqualLinearThenRope) {
  Rank rank;
  for (const auto& [together, of_values] :
       {std::pair{true, hd}, std::pair{false, hd}, std::pair{true, hd_v}, std::pair{false, hd + 4}}) {
    const ops::HeadSizes sizes = sizes_of(4, false, of_values);
    Tensor all = rank.normal({(H + G) * hd + G * of_values, D}, DType::f64, "w");
    std::vector<Tensor> weights = {all.narrow(0, 0, H * hd), all.narrow(0, H * hd, G * hd),
                                   all.narrow(0, (H + G) * hd, G * of_values)};
    EXPECT_TRUE(joined_rows(weights).defined());
    if (!together) {
      for (Tensor& weight : weights) weight = rank.tensor<double>(weight.shape(), values(weight));
      EXPECT_FALSE(joined_rows(weights).defined());
    }
    const Tensor in = rank.normal({B, S, D}, DType::f64, "x");
    const auto run = [&](const auto& project) {
      std::vector<std::unique_ptr<TestLeaf>> leaves;
      std::vector<Tensor> gradients;
      Tape tape(rank.stream);
      const Var x = tape.input(in);
      std::vector<Var> w;
      for (const Tensor& weight : weights) {
        leaves.push_back(std::make_unique<TestLeaf>(rank.stream, weight));
        w.push_back(tape.parameter(*leaves.back()));
      }
      const std::vector<Var> heads = project(tape, x, w);
      std::vector<std::pair<Var, Tensor>> roots;
      std::vector<std::vector<double>> out;
      for (size_t i = 0; i < 3; ++i) {
        roots.emplace_back(heads[i], rank.normal(heads[i].shape(), DType::f64, i == 0 ? "dq" : i == 1 ? "dk" : "dv"));
        out.push_back(values(heads[i].value()));
      }
      tape.backward(roots);
      out.push_back(values(tape.gradient(x)));
      for (const auto& leaf : leaves) out.push_back(values(leaf->gradient()));
      return out;
    };
    const auto found = run([&](Tape& tape, const Var& x, const std::vector<Var>& w) {
      const auto heads = ops::project_heads(tape, x, {w[0], w[1], w[2]}, table_of(rank, sizes.rope), sizes);
      return std::vector{heads.q, heads.k, heads.v};
    });
    const auto expected = run([&](Tape& tape, const Var& x, const std::vector<Var>& w) {
      const auto heads = [&](size_t i, int64_t count) {
        return ops::reshape(tape, ops::linear(tape, x, w[i], {}), {B, S, count, i == 2 ? sizes.value_dim : hd});
      };
      const auto turned = [&](const Var& y) { return ops::rope(tape, y, positions_of(rank), {100, 4}); };
      return std::vector{turned(heads(0, H)), turned(heads(1, G)), heads(2, G)};
    });
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(close(found[i], expected[i], 1e-12, 1e-12)) << i;
  }
}

TEST(Heads, RefuseShapesThatDoNotFit) {
  Rank rank;
  Tape tape(rank.stream);
  const ops::HeadSizes sizes = sizes_of(4, false);
  const auto var = [&](const Shape& shape) { return tape.input(rank.normal(shape, DType::f64, "x")); };
  const auto project = [&](const Shape& k, const Tensor& table) {
    return test::message_of<ShapeError>([&] {
      ops::project_heads(tape, var({B, S, D}), {var({H * hd, D}), var(k), var({G * hd, D})}, table, sizes);
    });
  };
  EXPECT_THAT(project({G * hd, D + 1}, table_of(rank, sizes.rope)), ::testing::HasSubstr("the weight of k must be"));
  EXPECT_THAT(project({G * hd, D}, {}), ::testing::HasSubstr("the table of angles must be [6, 4]"));
}

}  // namespace
}  // namespace witan
