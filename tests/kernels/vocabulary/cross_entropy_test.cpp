#include <limits>

#include "support/rank.h"
#include "witan/kernels/common/blocks.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

// V words, followed by padding columns with NaN, which must not be read.
struct Case {
  Case(Rank& rank, DType dtype, int64_t T, int64_t V, int64_t padding = 0)
      : words(V),
        logits(rank.poisoned({T, V + padding}, dtype)),
        weights(rank.normal({T}, accumulator(dtype), "weights")),
        targets(rank.stream.empty({T}, DType::i32)),
        loss(rank.poisoned({1}, accumulator(dtype))),
        losses(rank.poisoned({T}, accumulator(dtype))),
        lse(rank.poisoned({T}, accumulator(dtype))) {
    const Tensor values = rank.normal({T, V}, dtype, "logits", 3);
    kernels::copy_columns(rank.stream, logits, values, {0, 0, V});
    for (int64_t t = 0; t < T; ++t) targets.data<int32_t>()[t] = static_cast<int32_t>((t * 7 + 3) % V);
  }
  void forward(Rank& rank) {
    kernels::cross_entropy_forward(rank.stream, loss, losses, lse, logits, targets, weights, words);
  }
  Tensor backward(Rank& rank, double seed, const Tensor& to = {}) {
    const Tensor dloss = rank.stream.empty({1}, weights.dtype());
    dispatch_floating(dloss.dtype(), [&]<class A>() { *dloss.data<A>() = A(seed); });
    Tensor dlogits = to.defined() ? to : rank.poisoned(logits.shape(), logits.dtype());
    kernels::cross_entropy_backward(rank.stream, dlogits, dloss, logits, lse, targets, weights, {0, words});
    return dlogits;
  }
  int64_t words;
  Tensor logits, weights, targets, loss, losses, lse;
};

TEST(CrossEntropy, AgreesWithTheFormula) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t T : {0, 1, 6})
      for (const int64_t V : {1, 2, 17, 9001}) {
        SCOPED_TRACE(cat(dtype, " [", T, ", ", V, "]"));
        Case c(rank, dtype, T, V);
        c.forward(rank);
        const auto x = values(c.logits), w = values(c.weights);
        double loss = 0;
        std::vector<double> losses, lse, dlogits;
        for (size_t t = 0; t < static_cast<size_t>(T); ++t) {
          const auto row = x.begin() + static_cast<int64_t>(t) * V;
          double sum = 0;
          for (int64_t v = 0; v < V; ++v) sum += std::exp(row[v]);
          const int32_t target = c.targets.data<int32_t>()[t];
          lse.push_back(std::log(sum));
          losses.push_back(lse[t] - row[target]);
          loss += w[t] * losses[t];
          for (int64_t v = 0; v < V; ++v) dlogits.push_back(0.5 * w[t] * (std::exp(row[v] - lse[t]) - (v == target)));
        }
        const double tolerance = dtype == DType::f64 ? 1e-12 : 3e-6;
        EXPECT_TRUE(close(values(c.lse), lse, tolerance, tolerance));
        EXPECT_TRUE(close(values(c.losses), losses, tolerance, tolerance));
        EXPECT_TRUE(close(values(c.loss), {loss}, tolerance, tolerance));
        const double rounding = dtype == DType::bf16 ? 1e-2 : tolerance;
        EXPECT_TRUE(close(values(c.backward(rank, 0.5)), dlogits, rounding / 100, rounding));
      }
}

// Results have the bits of the words alone, whatever follows them, and padding's gradients are exactly 0.
TEST(CrossEntropy, IgnoresPaddingColumns) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t padding : {1, 7, 300}) {
      Case bare(rank, dtype, 6, 17), padded(rank, dtype, 6, 17, padding), fused(rank, dtype, 6, 17, padding);
      bare.forward(rank);
      padded.forward(rank);
      EXPECT_EQ(values(padded.loss), values(bare.loss));
      EXPECT_EQ(values(padded.losses), values(bare.losses));
      EXPECT_EQ(values(padded.lse), values(bare.lse));
      const Tensor expected = rank.stream.zeros({6, 17 + padding}, dtype);
      kernels::copy_columns(rank.stream, expected, bare.backward(rank, 1), {0, 0, 17});
      EXPECT_EQ(values(padded.backward(rank, 1)), values(expected));
      EXPECT_EQ(values(padded.backward(rank, 1, padded.logits)), values(expected));
      kernels::cross_entropy_fused(rank.stream, {fused.loss, fused.losses, fused.lse, fused.logits}, fused.logits,
                                   fused.targets, fused.weights, 17);
      EXPECT_EQ(values(fused.logits), values(expected));
      EXPECT_EQ(values(fused.loss), values(bare.loss));
    }
}

TEST(CrossEntropy, BackwardInPlaceHasTheSameBits) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Case c(rank, dtype, 5, 37);
    c.forward(rank);
    const auto apart = values(c.backward(rank, 2));
    EXPECT_EQ(values(c.backward(rank, 2, c.logits)), apart);
  }
}

TEST(CrossEntropy, FusedHasTheBitsOfForwardAndBackward) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Case c(rank, dtype, 5, 37), fused(rank, dtype, 5, 37);
    c.forward(rank);
    const auto dlogits = values(c.backward(rank, 1));
    kernels::cross_entropy_fused(rank.stream, {fused.loss, fused.losses, fused.lse, fused.logits}, fused.logits,
                                 fused.targets, fused.weights, fused.words);
    EXPECT_EQ(values(fused.logits), dlogits);
    EXPECT_EQ(values(fused.loss), values(c.loss));
    EXPECT_EQ(values(fused.losses), values(c.losses));
    EXPECT_EQ(values(fused.lse), values(c.lse));
  }
}

TEST(CrossEntropy, SkipsTokensWithoutWeight) {
  Rank rank;
  Case c(rank, DType::f32, 3, 4);
  std::fill_n(c.logits.data<float>() + 4, 4, std::nanf(""));
  c.weights.data<float>()[1] = 0;
  c.targets.data<int32_t>()[1] = -1;
  c.forward(rank);
  EXPECT_TRUE(std::isfinite(values(c.loss)[0]));
  EXPECT_EQ(values(c.losses)[1], 0);
  EXPECT_EQ(values(c.lse)[1], 0);
  const auto dlogits = values(c.backward(rank, std::nan("")));
  for (size_t v = 4; v < 8; ++v) EXPECT_EQ(dlogits[v], 0);
  EXPECT_TRUE(std::isnan(dlogits[0]));
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  Rank rank;
  Case c(rank, DType::f32, 1, 3);
  std::ranges::copy(std::vector<float>{3e38f, -3e38f, 3e38f}, c.logits.data<float>());
  c.weights.data<float>()[0] = 1;
  c.targets.data<int32_t>()[0] = 2;
  c.forward(rank);
  EXPECT_TRUE(std::isfinite(values(c.loss)[0]));
  std::ranges::copy(std::vector<float>{1, -std::numeric_limits<float>::infinity(), 1}, c.logits.data<float>());
  c.forward(rank);
  EXPECT_NEAR(values(c.loss)[0], std::log(2.0), 1e-6);
  EXPECT_EQ(values(c.backward(rank, 1))[1], 0);
}

TEST(CrossEntropy, NanLogitsReachTheLoss) {
  Rank rank;
  Case c(rank, DType::f32, 2, 5);
  c.logits.data<float>()[3] = std::nanf("");
  c.forward(rank);
  EXPECT_TRUE(std::isnan(values(c.loss)[0]));
}

// The columns [begin, end) of the logits, packed.
Tensor columns_of(Rank& rank, const Tensor& logits, int64_t begin, int64_t end) {
  const int64_t T = logits.size(0), V = logits.size(1);
  Tensor out = rank.stream.empty({T, end - begin}, logits.dtype());
  dispatch_floating(logits.dtype(), [&]<class E>() {
    for (int64_t t = 0; t < T; ++t)
      std::copy(logits.data<E>() + t * V + begin, logits.data<E>() + t * V + end, out.data<E>() + t * (end - begin));
  });
  return out;
}

// Computes parts of the columns as ranks with these bounds do, and combines them; columns after the words are not read.
void forward_in_parts(Rank& rank, Case& c, const std::vector<int64_t>& bounds) {
  const int64_t T = c.logits.size(0), n = static_cast<int64_t>(bounds.size()) - 1;
  const Tensor parts = rank.poisoned({n, 2, T}, c.weights.dtype());
  for (int64_t r = 0; r < n; ++r) {
    const int64_t begin = bounds[static_cast<size_t>(r)], end = bounds[static_cast<size_t>(r) + 1];
    kernels::cross_entropy_part(rank.stream, parts.narrow(0, r, 1).reshape({2, T}),
                                columns_of(rank, c.logits, begin, end), c.targets, c.weights,
                                {begin, std::clamp<int64_t>(c.words - begin, 0, end - begin)});
  }
  kernels::cross_entropy_combine(rank.stream, c.loss, c.losses, c.lse, parts, c.weights);
}

TEST(CrossEntropy, PartsCombineToTheWhole) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t T : {0, 1, 6})
      for (const auto& bounds : std::vector<std::vector<int64_t>>{
               {0, 17}, {0, 9, 17}, {0, 0, 1, 17}, {0, 5, 5, 16, 17}, {0, 17, 17}, {0, 12, 24}, {0, 8, 16, 24, 32}}) {
        SCOPED_TRACE(cat(dtype, " T=", T, " in ", bounds.size() - 1, " parts"));
        Case whole(rank, dtype, T, 17), divided(rank, dtype, T, 17, bounds.back() - 17);
        for (Case* c : {&whole, &divided}) {
          if (T < 2) continue;
          dispatch_floating(c->weights.dtype(), [&]<class A>() { c->weights.data<A>()[1] = A(0.0f); });
          dispatch_floating(dtype, [&]<class E>() { c->logits.data<E>()[c->logits.size(1) + 3] = E(std::nanf("")); });
          c->targets.data<int32_t>()[1] = -1;
        }
        whole.forward(rank);
        forward_in_parts(rank, divided, bounds);
        const double tolerance = bounds.size() == 2    ? 0
                                 : dtype == DType::f64 ? 1e-14
                                                       : 1e-6;  // with a single part, the same bits
        EXPECT_TRUE(close(divided.lse, whole.lse, tolerance, tolerance));
        EXPECT_TRUE(close(divided.losses, whole.losses, tolerance, tolerance));
        EXPECT_TRUE(close(divided.loss, whole.loss, tolerance * 6, tolerance));
      }
}

TEST(CrossEntropy, GradientsOfColumnsEqualThoseOfTheWhole) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Case c(rank, dtype, 6, 17, 7);
    c.forward(rank);
    const Tensor dlogits = c.backward(rank, 1);
    for (const auto& [begin, end] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 9}, {9, 17}, {3, 4}, {5, 5}, {12, 24}, {18, 24}}) {
      const Tensor in = columns_of(rank, c.logits, begin, end), out = rank.poisoned(in.shape(), dtype);
      const auto expected = values(columns_of(rank, dlogits, begin, end));
      for (const Tensor& to : {out, in}) {
        kernels::cross_entropy_backward(rank.stream, to, {}, in, c.lse, c.targets, c.weights,
                                        {begin, std::clamp<int64_t>(c.words - begin, 0, end - begin)});
        EXPECT_EQ(values(to), expected) << dtype << " columns [" << begin << ", " << end << ")";
      }
    }
  }
}

// A rank whose columns are all masked contributes nothing, rather than NaN. The loss is NaN only if all columns
// are masked.
TEST(CrossEntropy, AcceptsPartsOfMaskedColumns) {
  Rank rank;
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  Case c(rank, DType::f32, 1, 4);
  c.weights.data<float>()[0] = 1;
  c.targets.data<int32_t>()[0] = 0;
  std::ranges::copy(std::vector<float>{2, 2, kMasked, kMasked}, c.logits.data<float>());
  forward_in_parts(rank, c, {0, 2, 4});
  EXPECT_NEAR(values(c.loss)[0], std::log(2.0), 1e-6);
  std::ranges::fill(c.logits.span<float>(), kMasked);
  forward_in_parts(rank, c, {0, 2, 4});
  EXPECT_TRUE(std::isnan(values(c.loss)[0]));
  c.logits.data<float>()[3] = std::nanf("");
  c.logits.data<float>()[0] = 1;
  forward_in_parts(rank, c, {0, 2, 4});
  EXPECT_TRUE(std::isnan(values(c.loss)[0]));
}

TEST(CrossEntropy, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto run = [](int threads) {
    Rank rank(threads);
    Case c(rank, DType::f32, 77, 1003);
    c.forward(rank);
    auto all = values(c.backward(rank, 1));
    all.push_back(values(c.loss)[0]);
    return all;
  };
  EXPECT_EQ(run(1), run(3));
}

}  // namespace
}  // namespace witan
