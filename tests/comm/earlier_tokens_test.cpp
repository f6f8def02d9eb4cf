#include "witan/comm/earlier_tokens.h"

#include <gtest/gtest.h>

#include "support/attention.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::share_of;
using testing::ThreadRank;
using testing::values;

struct Case {
  int n;
  int64_t B, S, I, count;
};
// Fewer tokens than a chunk has, as many, more than several chunks have, and more than the sequence.
const std::vector<Case> kCases = {{2, 2, 16, 3, 2}, {2, 1, 8, 1, 2}, {4, 2, 16, 2, 3}, {4, 1, 8, 3, 5},
                                  {1, 2, 6, 2, 2},  {2, 1, 4, 2, 9}, {2, 0, 8, 2, 3}};

// Calls each(chunk of 2 B, token before it, position of that token in its sequence, sequence).
template <class Each>
void for_earlier(const Case& c, int rank, const Each& each) {
  const int64_t C = c.S / (2 * c.n);
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t chunk = half == 0 ? rank : 2 * c.n - 1 - rank;
      for (int64_t j = 0; j < c.count; ++j) each(2 * b + half, j, chunk * C - c.count + j, b);
    }
}

TEST(EarlierTokens, AreThoseBeforeEachChunk) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f32, DType::bf16, DType::i32})
      on_ranks(c.n, [&](ThreadRank& rank) {
        SCOPED_TRACE(cat(c.n, " ranks, S=", c.S, ", ", c.count, " tokens, ", dtype));
        const auto group = rank.everyone("context");
        const bool ids = dtype == DType::i32;
        std::vector<int32_t> numbers(static_cast<size_t>(c.B * c.S * c.I));
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int32_t>(i + 1);
        const Shape shape{c.B, c.S, c.I};
        const Tensor whole = ids ? rank.tensor<int32_t>(shape, numbers) : rank.normal(shape, dtype, "x");
        const Tensor found = earlier_tokens(rank.stream, share_of(rank, whole, c.n, rank.rank), c.count, *group);
        ASSERT_EQ(found.shape(), Shape({2 * c.B, c.count, c.I}));
        const int64_t bytes = c.I * size_of(dtype);
        const std::vector<std::byte> none(static_cast<size_t>(bytes));
        for_earlier(c, rank.rank, [&](int64_t chunk, int64_t j, int64_t position, int64_t b) {
          const std::byte* const expected = position < 0 ? none.data() : whole.raw() + (b * c.S + position) * bytes;
          EXPECT_EQ(std::memcmp(found.raw() + (chunk * c.count + j) * bytes, expected, static_cast<size_t>(bytes)), 0)
              << "rank " << rank.rank << " chunk " << chunk << " token " << j;
        });
      });
}

// <earlier tokens of x, dy> over all ranks equals <x, sums of dy>.
TEST(EarlierTokens, SumsAreTheAdjoint) {
  for (const Case& c : kCases) {
    if (c.B * c.S == 0) continue;
    on_ranks(c.n, [&](ThreadRank& rank) {
      SCOPED_TRACE(cat(c.n, " ranks, S=", c.S, ", ", c.count, " tokens"));
      const auto group = rank.everyone("context");
      const int64_t C = c.S / (2 * c.n), sent = std::min(C, c.count);
      const Tensor x = share_of(rank, rank.normal({c.B, c.S, c.I}, DType::f64, "x"), c.n, rank.rank);
      const Tensor dy = rank.own_normal({2 * c.B, c.count, c.I}, DType::f64, "dy");
      const Tensor y = earlier_tokens(rank.stream, x, c.count, *group),
                   sums = sum_of_earlier_tokens(rank.stream, dy, C, *group);
      ASSERT_EQ(sums.shape(), Shape({2 * c.B, sent, c.I}));
      const Tensor products = rank.stream.zeros({2}, DType::f64);
      double* const product = products.data<double>();
      for (int64_t i = 0; i < y.elements(); ++i) product[0] += y.data<double>()[i] * dy.data<double>()[i];
      for (int64_t chunk = 0; chunk < 2 * c.B; ++chunk)
        for (int64_t t = 0; t < sent; ++t)
          for (int64_t i = 0; i < c.I; ++i)
            product[1] += x.data<double>()[(chunk * C + C - sent + t) * c.I + i] *
                          sums.data<double>()[(chunk * sent + t) * c.I + i];
      group->all_reduce(rank.stream, products);
      EXPECT_NEAR(product[0], product[1], 1e-12 * std::max(1.0, std::abs(product[0])));
    });
  }
}

TEST(EarlierTokens, PlansCountTheLastTokensOfChunks) {
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  MetaGroup group(4, 1, "context");
  EXPECT_EQ(earlier_tokens(meta, meta.empty({3, 16, 5}, DType::bf16), 2, group).shape(), Shape({6, 2, 5}));
  EXPECT_EQ(group.sent().at("all_gather"), 3 * (2 * 3 * 2 * 5) * 2);
  sum_of_earlier_tokens(meta, meta.empty({6, 2, 5}, DType::bf16), 8, group);
  EXPECT_EQ(group.sent().at("all_gather"), 2 * 3 * (2 * 3 * 2 * 5) * 2);
}

}  // namespace
}  // namespace witan
