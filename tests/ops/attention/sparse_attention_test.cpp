#include "witan/ops/attention/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/attention/attention.h"

namespace witan {
namespace {

using testing::close;
using testing::gradcheck;
using testing::Rank;
using testing::values;

class SparseAttentionOps : public ::testing::Test {
 protected:
  static constexpr int64_t B = 2, S = 7, H = 3, d = 4, N = 2, hd = 5, hd_v = 3, K = 3;
  static constexpr double kScale = 0.4, kIndexScale = 0.3;

  // Documents, one of them padding.
  Tensor documents() { return rank.tensor<int32_t>({B, S}, {0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, -1, -1}); }

  struct Tensors {
    explicit Tensors(Rank& on)
        : rank(&on),
          index_q(on.normal({B, S, H, d}, DType::f64, "index q")),
          index_w(on.normal({B, S, H}, DType::f64, "index w")),
          index_k(on.normal({B, S, d}, DType::f64, "index k")),
          q(on.normal({B, S, N, hd}, DType::f64, "q")),
          k(on.normal({B, S, N, hd}, DType::f64, "k")),
          v(on.normal({B, S, N, hd_v}, DType::f64, "v")) {}

    Tensor chosen(const Tensor& ids, int64_t topk = K) const {
      return ops::choose_keys(rank->stream,
                              {index_q.reshape({B * S, H, d}),
                               index_w.reshape({B * S, H}),
                               index_k,
                               kIndexScale,
                               {.rows = B, .slots = S, .ids = ids}},
                              topk);
    }
    ops::IndexerTarget target(const Tensor& ids, bool sparse) const {
      ops::IndexerTarget of{q, k, {}, {}, kScale};
      if (!sparse) {
        of.lse = ops::attention_sums(rank->stream, q, k, v, ids, kScale);
        return of;
      }
      of.chosen = chosen(ids);
      Tape off(rank->stream, Tape::Mode::off);
      of.lse = ops::sparse_attention(off, off.constant(q), off.constant(k), off.constant(v), of.chosen, kScale).lse;
      return of;
    }

    Rank* rank;
    Tensor index_q, index_w, index_k, q, k, v;
  };

  Rank rank;
  const Tensors in{rank};
};

TEST_F(SparseAttentionOps, GradientsOfChosenKeysMatchDifferences) {
  const Tensor chosen = in.chosen(documents());
  gradcheck(rank, "sparse_attention",
            [&](Tape& tape, const std::vector<Var>& x) {
              return std::vector{ops::sparse_attention(tape, x[0], x[1], x[2], chosen, kScale).y};
            },
            {in.q, in.k, in.v});
}

TEST_F(SparseAttentionOps, GradientsOfTheIndexersLossMatchDifferences) {
  for (const bool sparse : {false, true})
    for (const Tensor& ids : {Tensor(), documents()}) {
      const ops::IndexerTarget target = in.target(ids, sparse);
      gradcheck(rank, "indexer_loss",
                [&](Tape& tape, const std::vector<Var>& x) {
                  return std::vector{ops::indexer_loss(tape, {x[0], x[1], x[2]}, kIndexScale, target, ids)};
                },
                {in.index_q, in.index_w, in.index_k});
    }
}

// Every pair by its definition: the softmax of each head, their mean, and the divergence of the scores' softmax.
TEST_F(SparseAttentionOps, TheLossIsTheDivergenceFromTheMeanOfHeads) {
  const Tensor ids = documents();
  const auto index_q = values(in.index_q), index_w = values(in.index_w), index_k = values(in.index_k), q = values(in.q),
             k = values(in.k);
  const auto dot = [](const std::vector<double>& a, int64_t i, const std::vector<double>& b, int64_t j, int64_t n) {
    return std::inner_product(a.begin() + i * n, a.begin() + (i + 1) * n, b.begin() + j * n, 0.0);
  };
  const auto softmax = [](std::vector<double> x) {
    double sum = 0;
    for (double& e : x) sum += e = std::exp(e);
    for (double& e : x) e /= sum;
    return x;
  };
  for (const bool sparse : {false, true}) {
    const Tensor chosen = in.chosen(ids);
    double total = 0;
    int64_t tokens = 0;
    for (int64_t t = 0; t < B * S; ++t) {
      const int32_t* const row_ids = ids.data<int32_t>() + t / S * S;
      if (row_ids[t % S] < 0) continue;
      ++tokens;
      std::vector<int64_t> keys;
      for (int64_t j = 0; j <= t % S; ++j) {
        const int32_t* const of = chosen.data<int32_t>() + t * K;
        if (row_ids[j] == row_ids[t % S] && (!sparse || std::find(of, of + K, j) != of + K))
          keys.push_back(t / S * S + j);
      }
      std::vector<double> scores, p(keys.size());
      for (const int64_t key : keys) {
        double score = 0;
        for (int64_t h = 0; h < H; ++h)
          score += index_w[static_cast<size_t>(t * H + h)] * std::max(dot(index_q, t * H + h, index_k, key, d), 0.0);
        scores.push_back(kIndexScale * score);
      }
      for (int64_t n = 0; n < N; ++n) {
        std::vector<double> logits;
        for (const int64_t key : keys) logits.push_back(kScale * dot(q, t * N + n, k, key * N + n, hd));
        const auto of_head = softmax(logits);
        for (size_t i = 0; i < p.size(); ++i) p[i] += of_head[i] / N;
      }
      const auto of_index = softmax(scores);
      for (size_t i = 0; i < p.size(); ++i) total += p[i] * std::log(p[i] / of_index[i]);
    }
    Tape off(rank.stream, Tape::Mode::off);
    const Var loss =
        ops::indexer_loss(off, {off.constant(in.index_q), off.constant(in.index_w), off.constant(in.index_k)},
                          kIndexScale, in.target(ids, sparse), ids);
    EXPECT_NEAR(values(loss.value())[0], total / static_cast<double>(tokens), 1e-13) << "sparse: " << sparse;
  }
}

TEST_F(SparseAttentionOps, AllKeysChosenIsAttention) {
  for (const Tensor& ids : {Tensor(), documents()}) {
    Tape tape(rank.stream), plain(rank.stream);
    const auto run = [&](Tape& on, bool sparse) {
      const Var q = on.input(in.q), k = on.input(in.k), v = on.input(in.v);
      const Var y = sparse ? ops::sparse_attention(on, q, k, v, in.chosen(ids, S), kScale).y
                           : ops::attention(on, q, k, v, ids, {kScale});
      on.backward({{y, rank.normal(y.shape(), DType::f64, "dy")}});
      return std::vector{values(y.value()), values(on.gradient(q)), values(on.gradient(k)), values(on.gradient(v))};
    };
    const auto all = run(tape, true), expected = run(plain, false);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(close(all[i], expected[i], 1e-12, 1e-12)) << i;
  }
}

// Scores of 4,200 tokens do not fit at once.
TEST_F(SparseAttentionOps, PartsOfTheTokensChooseAlike) {
  constexpr int64_t kLong = 4200, kFew = 5;
  static_assert(kLong * kLong > ops::kMostIndexScores);
  const Tensor q = rank.normal({kLong, 1, 2}, DType::f32, "q"), w = rank.normal({kLong, 1}, DType::f32, "w"),
               k = rank.normal({1, kLong, 2}, DType::f32, "k");
  const Tensor all = ops::choose_keys(rank.stream, {q, w, k, 1, {.rows = 1, .slots = kLong}}, kFew);
  for (const int64_t t : {int64_t{0}, int64_t{3}, int64_t{3994}, int64_t{3995}, kLong - 1}) {
    const Tensor one = ops::choose_keys(
        rank.stream, {q.narrow(0, t, 1), w.narrow(0, t, 1), k, 1, {.rows = 1, .slots = kLong, .first = t}}, kFew);
    EXPECT_EQ(all.narrow(0, t, 1).to_vector<int32_t>(), one.to_vector<int32_t>()) << t;
  }
}

TEST_F(SparseAttentionOps, RefusesOtherShapes) {
  Tape off(rank.stream, Tape::Mode::off);
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              ops::sparse_attention(off, off.constant(in.q), off.constant(in.k), off.constant(in.v),
                                    rank.stream.empty({B, S, K}, DType::i32), kScale);
            }),
            "sparse attention: chosen keys must be int32 [14, K], got [2, 7, 3]");
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              ops::indexer_loss(off, {off.constant(in.index_q), off.constant(in.index_k), off.constant(in.index_k)},
                                kIndexScale, in.target({}, false), {});
            }),
            "indexer: w must be [B=2, S=7, H=3], got [2, 7, 4]");
}

}  // namespace
}  // namespace witan
