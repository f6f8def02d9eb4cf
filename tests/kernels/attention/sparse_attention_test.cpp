#include "witan/kernels/attention/sparse_attention.h"

#include <cmath>
#include <limits>

#include "support/rank.h"

namespace witan {
namespace {

using kernels::KeyRows;
using testing::Rank;
using testing::values;

constexpr double kHiddenScore = -std::numeric_limits<double>::infinity();

TEST(SparseAttention, ChoicesAreTheLargestScoresInAscendingOrder) {
  Rank rank;
  const Tensor scores = rank.tensor<double>({4, 6}, {3,
                                                     1,
                                                     2,
                                                     5,
                                                     4,
                                                     kHiddenScore,  //
                                                     0,
                                                     7,
                                                     kHiddenScore,
                                                     7,
                                                     0,
                                                     7,  //
                                                     -1,
                                                     -0.0,
                                                     0,
                                                     -2,
                                                     0,
                                                     0,  //
                                                     kHiddenScore,
                                                     2,
                                                     kHiddenScore,
                                                     kHiddenScore,
                                                     1,
                                                     kHiddenScore}),
               chosen = rank.stream.empty({4, 3}, DType::i32);
  kernels::choose_keys(rank.stream, chosen, scores);
  EXPECT_EQ(chosen.to_vector<int32_t>(), (std::vector<int32_t>{0, 3, 4, 1, 3, 5, 1, 2, 4, 1, 4, -1}))
      << "of equal scores the lower slots are chosen";
  kernels::keep_chosen(rank.stream, scores, chosen);
  EXPECT_EQ(values(scores), (std::vector<double>{3,
                                                 kHiddenScore,
                                                 kHiddenScore,
                                                 5,
                                                 4,
                                                 kHiddenScore,  //
                                                 kHiddenScore,
                                                 7,
                                                 kHiddenScore,
                                                 7,
                                                 kHiddenScore,
                                                 7,  //
                                                 kHiddenScore,
                                                 0,
                                                 0,
                                                 kHiddenScore,
                                                 0,
                                                 kHiddenScore,  //
                                                 kHiddenScore,
                                                 2,
                                                 kHiddenScore,
                                                 kHiddenScore,
                                                 1,
                                                 kHiddenScore}));
}

TEST(SparseAttention, ScoresAreThoseOfTheFormula) {
  Rank rank;
  constexpr int64_t B = 2, S = 5, H = 3, d = 4;
  const Tensor q = rank.normal({B * S, H, d}, DType::f64, "q"), w = rank.normal({B * S, H}, DType::f64, "w"),
               k = rank.normal({B, S, d}, DType::f64, "k"), scores = rank.poisoned({3, S}, DType::f64),
               ids = rank.tensor<int32_t>({B, S}, {0, 0, 1, 1, 1, 4, 5, 4, 5, 5});
  constexpr int64_t kFirst = 6;  // the second row's tokens 1, 2 and 3
  const KeyRows where{.rows = B, .slots = S, .ids = ids, .first = kFirst};
  kernels::index_scores(rank.stream, scores, {q.narrow(0, kFirst, 3), w.narrow(0, kFirst, 3), k, 0.5, where});
  const auto all_q = values(q), all_w = values(w), all_k = values(k), got = values(scores);
  for (size_t t = 0; t < 3; ++t)
    for (size_t j = 0; j < S; ++j) {
      const auto token = t + kFirst, own = token - S, seen_id = static_cast<size_t>(ids.data<int32_t>()[token]);
      if (j > own || static_cast<size_t>(ids.data<int32_t>()[S + j]) != seen_id) {
        EXPECT_EQ(got[t * S + j], kHiddenScore);
        continue;
      }
      double sum = 0;
      for (size_t h = 0; h < H; ++h) {
        double dot = 0;
        for (size_t c = 0; c < d; ++c) dot += all_q[(token * H + h) * d + c] * all_k[(S + j) * d + c];
        sum += all_w[token * H + h] * std::max(dot, 0.0);
      }
      EXPECT_NEAR(got[t * S + j], 0.5 * sum, 1e-13) << "token " << token << ", slot " << j;
    }
}

TEST(SparseAttention, ChoosersOfAKeyAreAscending) {
  Rank rank;
  const Tensor chosen = rank.tensor<int32_t>({6, 2}, {0, -1, 0, 1, 1, 2, 0, -1, 0, 1, 0, 2}),
               begin = rank.stream.empty({7}, DType::i64), tokens = rank.stream.empty({12}, DType::i32);
  kernels::choosers_of_keys(rank.stream, {begin, tokens}, chosen, {.rows = 2, .slots = 3});
  EXPECT_EQ(begin.to_vector<int64_t>(), (std::vector<int64_t>{0, 2, 4, 5, 8, 9, 10}));
  EXPECT_EQ(tokens.narrow(0, 0, 10).to_vector<int32_t>(), (std::vector<int32_t>{0, 1, 1, 2, 2, 3, 4, 5, 4, 5}));
}

// Steps of generation read the rows and positions of their tokens.
// Queries come as [T, N, hd], outputs as [B, S, N, hd_v]: a token has the channels of its heads either way.
TEST(SparseAttention, CostCountsTheChosenPairs) {
  Rank rank;
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const auto tensor = [&](const Shape& shape, DType dtype) { return meta.empty(shape, dtype); };
  const Tensor q = tensor({2 * 10, 4, 8}, DType::f32), k = tensor({2, 10, 4, 8}, DType::f32),
               v = tensor({2, 10, 4, 6}, DType::f32), y = tensor({2, 10, 4, 6}, DType::f32),
               lse = tensor({2, 4, 10}, DType::f32), chosen = tensor({2 * 10, 3}, DType::i32);
  const kernels::SparseInputs in{q, k, v, chosen, {.rows = 2, .slots = 10}, 1};
  kernels::sparse_attention_forward(meta, y, lse, in);
  const double pairs = 2 * 10 * 3;
  EXPECT_EQ(meta.flops(), 2 * pairs * 4 * (8 + 6));
  meta.reset_costs();
  const kernels::ChoosersOfKeys choosers{tensor({2 * 10 + 1}, DType::i64), tensor({2 * 10 * 3}, DType::i32)};
  kernels::sparse_attention_backward(meta, {q, k, v, tensor({2 * 10, 4}, DType::f32)}, y, y, lse, in, choosers);
  EXPECT_EQ(meta.flops(), 2 * pairs * 4 * (4 * 8 + 3 * 6));
}

TEST(SparseAttention, StepsSeeTheirRowUpToTheirPosition) {
  Rank rank;
  const Tensor q = rank.tensor<double>({2, 1, 1}, {1, 2}), w = rank.tensor<double>({2, 1}, {1, 1}),
               k = rank.tensor<double>({2, 4, 1}, {1, 2, 3, 4, 5, 6, 7, 8}), scores = rank.poisoned({2, 4}, DType::f64);
  const KeyRows where{.rows = 2,
                      .slots = 4,
                      .row_of = rank.tensor<int32_t>({2}, {1, 0}),
                      .positions = rank.tensor<int32_t>({2}, {0, 2})};
  kernels::index_scores(rank.stream, scores, {q, w, k, 1, where});
  EXPECT_EQ(values(scores), (std::vector<double>{5, kHiddenScore, kHiddenScore, kHiddenScore, 2, 4, 6, kHiddenScore}));
}

TEST(SparseAttention, MeansLeavePaddingOut) {
  Rank rank;
  const Tensor mean = rank.poisoned({1}, DType::f64), share = rank.poisoned({1}, DType::f64),
               of = rank.tensor<double>({4}, {1, 2, 5, 9});
  kernels::mean_over_tokens(rank.stream, mean, share, of, rank.tensor<int32_t>({4}, {0, -1, 3, -1}));
  EXPECT_EQ(values(mean), std::vector<double>{3});
  EXPECT_EQ(values(share), std::vector<double>{0.5});
  kernels::mean_over_tokens(rank.stream, mean, share, of, rank.tensor<int32_t>({4}, {-1, -1, -1, -1}));
  EXPECT_EQ(values(mean), std::vector<double>{0});
}

}  // namespace
}  // namespace witan
