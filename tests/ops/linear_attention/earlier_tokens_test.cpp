#include "witan/ops/linear_attention/earlier_tokens.h"

#include <gmock/gmock.h>

#include "support/attention.h"
#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::share_of;
using testing::ThreadRank;
using testing::values;

// One rank has both chunks, of which the second follows the first.
TEST(EarlierTokensOp, GradientsMatchDifferences) {
  on_ranks(1, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    for (const int64_t count : {1, 3, 5}) {
      testing::gradcheck(rank, "with_earlier_tokens",
                         [&](Tape& tape, const std::vector<Var>& in) {
                           return std::vector{ops::with_earlier_tokens(tape, in[0], count, *group)};
                         },
                         {rank.normal({2, 6, 2}, DType::f64, "x")});
      testing::gradcheck(rank, "without_earlier_tokens",
                         [&](Tape& tape, const std::vector<Var>& in) {
                           return std::vector{ops::without_earlier_tokens(tape, in[0], count)};
                         },
                         {rank.normal({4, 3 + count, 2}, DType::f64, "y")});
    }
  });
}

// The gradient of a token is the sum of its own and of those where other ranks read it.
TEST(EarlierTokensOp, GradientsReturnToTheirRanks) {
  constexpr int64_t kB = 2, kS = 16, kCount = 3;
  for (const int n : {2, 4})
    on_ranks(n, [n](ThreadRank& rank) {
      const auto group = rank.everyone("context");
      Tape tape(rank.stream);
      const Tensor all = rank.normal({kB, kS, 1}, DType::f64, "x");
      const Var x = tape.input(share_of(rank, all, n, rank.rank));
      const Var y = ops::with_earlier_tokens(tape, x, kCount, *group);
      tape.backward({{y, {}}});
      const int64_t C = kS / (2 * n);
      Tensor reads = rank.stream.zeros({kB, kS, 1}, DType::f64);  // how often each token is read
      for (int64_t b = 0; b < kB; ++b)
        for (int64_t chunk = 0; chunk < 2 * n; ++chunk)
          for (int64_t t = std::max<int64_t>(chunk * C - kCount, 0); t < (chunk + 1) * C; ++t)
            reads.data<double>()[b * kS + t] += 1;
      EXPECT_EQ(values(tape.gradient(x)), values(share_of(rank, reads, n, rank.rank)));
      EXPECT_EQ(values(ops::without_earlier_tokens(tape, y, kCount).value()), values(x.value()));
    });
}

TEST(EarlierTokensOp, IdsAreThoseOfTheirTokens) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    const Tensor ids = rank.tensor<int32_t>({1, 8}, {1, 1, 2, 3, 3, 3, 4, 4});
    const Tensor found = ops::ids_with_earlier_tokens(rank.stream, share_of(rank, ids, 2, rank.rank), 1, *group);
    EXPECT_EQ(found.to_vector<int32_t>(),
              rank.rank == 0 ? (std::vector<int32_t>{0, 1, 1, 3, 4, 4}) : (std::vector<int32_t>{1, 2, 3, 3, 3, 3}));
  });
}

TEST(EarlierTokensOp, OtherShapesAreRefused) {
  on_ranks(1, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    Tape off(rank.stream, Tape::Mode::off);
    const auto x = [&](const Shape& shape) { return off.constant(rank.normal(shape, DType::f64, "x")); };
    EXPECT_EQ(test::message_of<ShapeError>([&] {
                ops::with_earlier_tokens(off, x({1, 3, 2}), 1, *group);
              }),
              "with_earlier_tokens: x must be contiguous [B, 2 C, I], got [1, 3, 2]");
    EXPECT_EQ(test::message_of<ShapeError>([&] {
                ops::without_earlier_tokens(off, x({2, 3, 2}), 3);
              }),
              "without_earlier_tokens: y must be contiguous [2 B, 3 + C, I], got [2, 3, 2]");
  });
}

}  // namespace
}  // namespace witan
