#include "witan/ops/linear_attention/gated_convolution.h"

#include <gmock/gmock.h>

#include "ops/linear_attention/documents.h"
#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::ids_of;
using testing::Rank;
using testing::values;

TEST(GatedConvolution, GradientsMatchDifferences) {
  Rank rank;
  const Tensor ids = ids_of(rank, 2, {3, 1, 4});
  for (const int64_t W : {2, 3, 4}) {
    std::vector<Tensor> in = {rank.normal({2, 8, 9}, DType::f64, "bcx"), rank.normal({3, W}, DType::f64, "w")};
    testing::gradcheck(
        rank, "gated_convolution",
        [&](Tape& tape, const std::vector<Var>& x) {
          return std::vector{ops::gated_convolution(tape, x[0], x[1], {}, ids)};
        },
        in);
    in.push_back(rank.normal({3}, DType::f64, "bias"));
    testing::gradcheck(
        rank, "gated_convolution with biases",
        [&](Tape& tape, const std::vector<Var>& x) {
          return std::vector{ops::gated_convolution(tape, x[0], x[1], x[2], {})};
        },
        in);
  }
}

TEST(GatedConvolution, MultipliesInputsAndOutputsOfItsDocument) {
  Rank rank;
  Tape off(rank.stream, Tape::Mode::off);
  // b, c, x of each of four tokens
  const Var bcx = off.constant(rank.tensor<double>({1, 4, 3}, {1, 3, 1, -1, 5, -2, 2, 7, 2, 4, -1, 2})),
            w = off.constant(rank.tensor<double>({1, 3}, {100, 10, 1})),
            bias = off.constant(rank.tensor<double>({1}, {1000}));
  const Tensor ids = ids_of(rank, 1, {3, 1});
  EXPECT_EQ(values(ops::gated_convolution(off, bcx, w, {}, ids).value()),
            (std::vector<double>{3 * 1, 5 * 12, 7 * 124, -1 * 8}));
  EXPECT_EQ(values(ops::gated_convolution(off, bcx, w, bias, ids).value()),
            (std::vector<double>{3 * 1001, 5 * 1012, 7 * 1124, -1 * 1008}));
}

TEST(GatedConvolution, ShapesThatDoNotFitAreRefused) {
  Rank rank;
  Tape off(rank.stream, Tape::Mode::off);
  const auto refusal = [&](const Shape& bcx, const Shape& w, const Tensor& ids) {
    return test::message_of<ShapeError>([&] {
      ops::gated_convolution(off, off.constant(rank.normal(bcx, DType::f64, "bcx")),
                             off.constant(rank.normal(w, DType::f64, "w")), {}, ids);
    });
  };
  EXPECT_THAT(refusal({1, 4, 8}, {3, 2}, {}), ::testing::HasSubstr("bcx must be contiguous [B, S, 3 C = 9]"));
  EXPECT_THAT(refusal({1, 4, 9}, {3, 1}, {}), ::testing::HasSubstr("W at least 2"));
  EXPECT_THAT(refusal({1, 4, 9}, {3, 2}, ids_of(rank, 1, {5})), ::testing::HasSubstr("sequence_ids must be"));
}

}  // namespace
}  // namespace witan
