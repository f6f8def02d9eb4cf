#include <limits>

#include "support/cuda_rank.h"
#include "witan/kernels/common/blocks.h"
#include "witan/kernels/vocabulary/vocabulary.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {
namespace {

using testing::values;

class CrossEntropyOnGpu : public testing::CudaTest {
 protected:
  // A third of the tokens have weight 0, no target, and NaN logits.
  struct Case {
    Tensor logits, weights, targets;
    int64_t words;
  };
  // `padding`: columns after the V words, whose logits must not be read.
  Case make(DType dtype, int64_t T, int64_t V, int64_t padding = 0) {
    Case c{host.poisoned({T, V + padding}, dtype), host.normal({T}, accumulator(dtype), "weights"),
           host.stream.empty({T}, DType::i32), V};
    kernels::copy_columns(host.stream, c.logits, host.normal({T, V}, dtype, "logits", 3), {0, 0, V});
    for (int64_t t = 0; t < T; ++t) {
      c.targets.data<int32_t>()[t] = static_cast<int32_t>((t * 7 + V - 1) % V);
      if (t % 3 != 1) continue;
      c.targets.data<int32_t>()[t] = -1;
      dispatch_floating(c.weights.dtype(), [&]<class A>() { c.weights.data<A>()[t] = A(0.0f); });
      dispatch_floating(dtype, [&]<class E>() { c.logits.data<E>()[t * (V + padding)] = E(std::nanf("")); });
    }
    return c;
  }
  // p - 1 at a target of nearly certain probability is the rounding of p.
  static double near_zero(DType dtype) { return dtype == DType::f64 ? 1e-14 : 1e-6; }
  struct Results {
    Tensor loss, losses, lse, dlogits;
  };
  static Results run(Stream& stream, const Case& c, const Tensor& dloss, const Tensor& dlogits) {
    Results r{stream.empty({1}, c.weights.dtype()), stream.empty_like(c.weights), stream.empty_like(c.weights),
              dlogits};
    kernels::cross_entropy_forward(stream, r.loss, r.losses, r.lse, c.logits, c.targets, c.weights, c.words);
    kernels::cross_entropy_backward(stream, dlogits, dloss, c.logits, r.lse, c.targets, c.weights, {0, c.words});
    return r;
  }
  // The columns [begin, end), packed.
  Tensor columns_of(const Tensor& logits, int64_t begin, int64_t end) {
    const int64_t T = logits.size(0), V = logits.size(1);
    const Tensor out = host.stream.empty({T, end - begin}, logits.dtype());
    dispatch_floating(logits.dtype(), [&]<class E>() {
      for (int64_t t = 0; t < T; ++t)
        std::copy_n(logits.data<E>() + t * V + begin, end - begin, out.data<E>() + t * (end - begin));
    });
    return out;
  }
  Case to_gpu(const Case& c) {
    return {CudaTest::to_gpu(c.logits), CudaTest::to_gpu(c.weights), CudaTest::to_gpu(c.targets), c.words};
  }
};

TEST_F(CrossEntropyOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int64_t T : {0, 1, 7})
      for (const int64_t V : {1, 2, 17, 1000, 9001, 50257, 128256}) {
        SCOPED_TRACE(cat(dtype, " [", T, ", ", V, "]"));
        const Case c = make(dtype, T, V);
        const Tensor dloss = host.normal({1}, c.weights.dtype(), "dloss");
        const Results expected = run(host.stream, c, dloss, host.poisoned({T, V}, dtype));
        const Results out = run(gpu(), to_gpu(c), CudaTest::to_gpu(dloss), poisoned({T, V}, dtype));
        const double narrow = dtype == DType::f64 ? 1e-12 : 1e-5;  // statistics are in the accumulator's dtype
        EXPECT_TRUE(agree(out.lse, expected.lse, narrow, narrow));
        EXPECT_TRUE(agree(out.losses, expected.losses, narrow, narrow));
        EXPECT_TRUE(agree(out.loss, expected.loss, narrow, narrow));
        EXPECT_TRUE(agree(out.dlogits, expected.dlogits, near_zero(dtype), tolerance(dtype)));
      }
}

TEST_F(CrossEntropyOnGpu, EntropiesAgreeWithTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int64_t T : {0, 1, 7})
      for (const int64_t V : {1, 17, 9001, 128256}) {
        SCOPED_TRACE(cat(dtype, " [", T, ", ", V, "]"));
        const Case c = make(dtype, T, V, 5), there = to_gpu(c);
        const DType narrow = c.weights.dtype();
        const Tensor lse = run(host.stream, c, host.normal({1}, narrow, "dloss"), host.poisoned({T, V + 5}, dtype)).lse;
        const Tensor expected = host.poisoned({T}, narrow), found = poisoned({T}, narrow);
        kernels::token_entropies(host.stream, expected, c.logits, lse, c.weights, V);
        kernels::token_entropies(gpu(), found, there.logits, CudaTest::to_gpu(lse), there.weights, V);
        EXPECT_TRUE(agree(found, expected, tolerance(narrow), tolerance(narrow)));
      }
}

TEST_F(CrossEntropyOnGpu, RepeatsItsBitsAndWritesInPlace) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const Case c = make(dtype, 5, 9001), in_place = to_gpu(c);
    const Tensor dloss = CudaTest::to_gpu(host.normal({1}, c.weights.dtype(), "dloss"));
    const Results apart = run(gpu(), to_gpu(c), dloss, poisoned({5, 9001}, dtype));
    const Results over = run(gpu(), in_place, dloss, in_place.logits);
    EXPECT_EQ(values(to_host(over.dlogits)), values(to_host(apart.dlogits)));
    EXPECT_EQ(values(to_host(over.loss)), values(to_host(apart.loss)));
  }
}

// Rows that fit on a multiprocessor and rows that do not, more of them than multiprocessors, in place and not.
TEST_F(CrossEntropyOnGpu, FusedMatchesForwardAndBackward) {
  for (const auto& [dtype, T, V] : std::vector<std::tuple<DType, int64_t, int64_t>>{{DType::bf16, 0, 64},
                                                                                    {DType::bf16, 1, 8},
                                                                                    {DType::bf16, 300, 1000},
                                                                                    {DType::bf16, 7, 9001},
                                                                                    {DType::bf16, 140, 128256},
                                                                                    {DType::bf16, 2, 131072},
                                                                                    {DType::bf16, 2, 131080},
                                                                                    {DType::f32, 5, 1000},
                                                                                    {DType::f64, 5, 1000}}) {
    SCOPED_TRACE(cat(dtype, " [", T, ", ", V, "]"));
    const Case c = make(dtype, T, V);
    const auto fused = [&](Stream& stream, const Case& of, const Tensor& dlogits) {
      kernels::CrossEntropyOutputs out{stream.empty({1}, of.weights.dtype()), stream.empty_like(of.weights),
                                       stream.empty_like(of.weights), dlogits};
      kernels::cross_entropy_fused(stream, out, of.logits, of.targets, of.weights, of.words);
      return out;
    };
    const auto expected = fused(host.stream, c, host.poisoned({T, V}, dtype));
    const auto apart = fused(gpu(), to_gpu(c), poisoned({T, V}, dtype));
    const double narrow = dtype == DType::f64 ? 1e-12 : 1e-5;
    EXPECT_TRUE(agree(apart.lse, expected.lse, narrow, narrow));
    EXPECT_TRUE(agree(apart.losses, expected.losses, narrow, narrow));
    EXPECT_TRUE(agree(apart.loss, expected.loss, narrow, narrow));
    EXPECT_TRUE(agree(apart.dlogits, expected.dlogits, near_zero(dtype), tolerance(dtype)));
    const Case over = to_gpu(c);
    const auto in_place = fused(gpu(), over, over.logits);
    EXPECT_EQ(values(to_host(in_place.dlogits)), values(to_host(apart.dlogits)));
    EXPECT_EQ(values(to_host(in_place.lse)), values(to_host(apart.lse)));
  }
}

// Rows of every kind that the fused kernel takes, and one that is too long for it, also at addresses that are not
// aligned: scores, which have no gradient, equal what training minimises.
TEST_F(CrossEntropyOnGpu, ALossHasTheSameBitsInEveryKernel) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const auto& [V, padding] : std::vector<std::pair<int64_t, int64_t>>{{1, 7},
                                                                             {8, 0},
                                                                             {259, 5},
                                                                             {1000, 0},
                                                                             {8192, 0},
                                                                             {8193, 63},
                                                                             {16384, 0},
                                                                             {20000, 8},
                                                                             {50257, 47},
                                                                             {114696, 0},
                                                                             {128256, 0},
                                                                             {131072, 0},
                                                                             {131080, 0}}) {
      SCOPED_TRACE(cat(dtype, " ", V, " words and ", padding));
      const int64_t T = 140;
      const Case c = make(dtype, T, V, padding), of = to_gpu(c);
      const Tensor loss = poisoned({1}, DType::f32), losses = poisoned({T}, DType::f32),
                   lse = poisoned({T}, DType::f32);
      const auto expect = [&](const Tensor& other_loss, const Tensor& other_losses, const Tensor& other_lse) {
        EXPECT_EQ(values(to_host(other_losses)), values(to_host(losses)));
        EXPECT_EQ(values(to_host(other_lse)), values(to_host(lse)));
        EXPECT_EQ(values(to_host(other_loss)), values(to_host(loss)));
      };
      kernels::cross_entropy_fused(gpu(), {loss, losses, lse, poisoned({T, V + padding}, dtype)}, of.logits, of.targets,
                                   of.weights, V);
      const Results alone = run(gpu(), of, {}, poisoned({T, V + padding}, dtype));
      expect(alone.loss, alone.losses, alone.lse);
      Case moved = of;
      moved.logits = poisoned({T * (V + padding) + 3}, dtype).narrow(0, 3, T * (V + padding)).reshape({T, V + padding});
      gpu().write(moved.logits, c.logits.raw());
      const Results at_odd_address = run(gpu(), moved, {}, poisoned({T, V + padding}, dtype));
      expect(at_odd_address.loss, at_odd_address.losses, at_odd_address.lse);
      const Tensor parts = poisoned({1, 2, T}, DType::f32), combined = poisoned({T}, DType::f32),
                   combined_lse = poisoned({T}, DType::f32), combined_loss = poisoned({1}, DType::f32);
      kernels::cross_entropy_part(gpu(), parts.reshape({2, T}), of.logits, of.targets, of.weights, {0, V});
      kernels::cross_entropy_combine(gpu(), combined_loss, combined, combined_lse, parts, of.weights);
      expect(combined_loss, combined, combined_lse);
    }
}

// Results have the bits of the words alone, and gradients after the words are exactly 0: for rows that fit on a
// multiprocessor and rows that do not, in place and not, whole and in the columns of a rank.
TEST_F(CrossEntropyOnGpu, IgnoresPaddingColumns) {
  for (const auto& [dtype, V, padding] : std::vector<std::tuple<DType, int64_t, int64_t>>{{DType::bf16, 1, 7},
                                                                                          {DType::bf16, 1000, 24},
                                                                                          {DType::bf16, 1000, 3},
                                                                                          {DType::bf16, 50257, 47},
                                                                                          {DType::bf16, 131000, 1000},
                                                                                          {DType::f32, 1001, 23},
                                                                                          {DType::f64, 1001, 23}}) {
    SCOPED_TRACE(cat(dtype, " ", V, " words and ", padding));
    const int64_t T = 140;
    const Case c = make(dtype, T, V, padding);
    const Tensor one = host.stream.empty({1}, c.weights.dtype());
    dispatch_floating(one.dtype(), [&]<class A>() { *one.data<A>() = A(1.0f); });
    const Results expected = run(host.stream, c, one, host.poisoned({T, V + padding}, dtype));
    const auto expect = [&](const Results& out) {
      const double narrow = dtype == DType::f64 ? 1e-12 : 1e-5;
      EXPECT_TRUE(agree(out.lse, expected.lse, narrow, narrow));
      EXPECT_TRUE(agree(out.losses, expected.losses, narrow, narrow));
      EXPECT_TRUE(agree(out.loss, expected.loss, narrow * 10, narrow));
      EXPECT_TRUE(agree(out.dlogits, expected.dlogits, near_zero(dtype), tolerance(dtype)));
      const auto gradient = values(to_host(out.dlogits));
      for (int64_t t = 0; t < T; ++t)
        for (int64_t v = V; v < V + padding; ++v)
          ASSERT_EQ(gradient[static_cast<size_t>(t * (V + padding) + v)], 0) << t << ", " << v;
    };
    expect(run(gpu(), to_gpu(c), CudaTest::to_gpu(one), poisoned({T, V + padding}, dtype)));
    for (const bool in_place : {false, true}) {
      const Case of = to_gpu(c);
      const Results out{poisoned({1}, of.weights.dtype()), poisoned({T}, of.weights.dtype()),
                        poisoned({T}, of.weights.dtype()), in_place ? of.logits : poisoned({T, V + padding}, dtype)};
      kernels::cross_entropy_fused(gpu(), {out.loss, out.losses, out.lse, out.dlogits}, of.logits, of.targets,
                                   of.weights, of.words);
      expect(out);
    }
    const Case of = to_gpu(c);
    const Results out{poisoned({1}, of.weights.dtype()), poisoned({T}, of.weights.dtype()),
                      poisoned({T}, of.weights.dtype()), poisoned({T, V + padding}, dtype)};
    const Tensor part = poisoned({1, 2, T}, of.weights.dtype());
    kernels::cross_entropy_part(gpu(), part.reshape({2, T}), of.logits, of.targets, of.weights, {0, V});
    kernels::cross_entropy_combine(gpu(), out.loss, out.losses, out.lse, part, of.weights);
    kernels::cross_entropy_backward(gpu(), out.dlogits, {}, of.logits, out.lse, of.targets, of.weights, {0, V});
    expect(out);
  }
}

// Columns of logits divided among ranks as unevenly as possible. A single part has the bits of the whole.
TEST_F(CrossEntropyOnGpu, PartsAgreeWithTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int64_t T : {0, 1, 700})
      for (const std::vector<int64_t>& bounds :
           {std::vector<int64_t>{0, 1003}, {0, 600, 1003}, {0, 0, 1, 1003}, {0, 1003, 1003}}) {
        const int64_t V = bounds.back(), n = static_cast<int64_t>(bounds.size()) - 1;
        SCOPED_TRACE(cat(dtype, " [", T, ", ", V, "] in ", n, " parts"));
        const Case whole = make(dtype, T, V), on_gpu = to_gpu(whole);
        const Tensor dloss = host.normal({1}, whole.weights.dtype(), "dloss");
        const Results expected = run(host.stream, whole, dloss, host.poisoned({T, V}, dtype));
        const Tensor parts = poisoned({n, 2, T}, whole.weights.dtype());
        const auto part = [&](int64_t r) { return parts.narrow(0, r, 1).reshape({2, T}); };
        std::vector<Tensor> columns;
        for (int64_t r = 0; r < n; ++r) {
          const int64_t begin = bounds[static_cast<size_t>(r)], end = bounds[static_cast<size_t>(r) + 1];
          columns.push_back(CudaTest::to_gpu(columns_of(whole.logits, begin, end)));
          kernels::cross_entropy_part(gpu(), part(r), columns.back(), on_gpu.targets, on_gpu.weights,
                                      {begin, end - begin});
        }
        const Tensor loss = poisoned({1}, parts.dtype()), losses = poisoned({T}, parts.dtype()),
                     lse = poisoned({T}, parts.dtype());
        kernels::cross_entropy_combine(gpu(), loss, losses, lse, parts, on_gpu.weights);
        const double narrow = dtype == DType::f64 ? 1e-12 : 1e-5;
        EXPECT_TRUE(agree(lse, expected.lse, narrow, narrow));
        EXPECT_TRUE(agree(losses, expected.losses, narrow, narrow));
        EXPECT_TRUE(agree(loss, expected.loss, narrow * 10, narrow));
        for (int64_t r = 0; r < n; ++r) {
          const Tensor& in = columns[static_cast<size_t>(r)];
          const int64_t begin = bounds[static_cast<size_t>(r)], end = bounds[static_cast<size_t>(r) + 1];
          kernels::cross_entropy_backward(gpu(), in, CudaTest::to_gpu(dloss), in, lse, on_gpu.targets, on_gpu.weights,
                                          {begin, end - begin});
          EXPECT_TRUE(agree(in, columns_of(expected.dlogits, begin, end), near_zero(dtype), tolerance(dtype)));
        }
        if (n > 1) continue;
        const Results alone = run(gpu(), on_gpu, CudaTest::to_gpu(dloss), poisoned({T, V}, dtype));
        EXPECT_EQ(values(to_host(lse)), values(to_host(alone.lse)));
        EXPECT_EQ(values(to_host(losses)), values(to_host(alone.losses)));
        EXPECT_EQ(values(to_host(loss)), values(to_host(alone.loss)));
        EXPECT_EQ(values(to_host(columns[0])), values(to_host(alone.dlogits)));
      }
}

// A rank whose columns are all masked contributes nothing, rather than NaN.
TEST_F(CrossEntropyOnGpu, AcceptsPartsOfMaskedColumns) {
  const Tensor parts = poisoned({2, 2, 1}, DType::f32), weights = CudaTest::to_gpu(host.tensor<float>({1}, {1})),
               targets = CudaTest::to_gpu(host.tensor<int32_t>({1}, {0}));
  const Tensor finite = CudaTest::to_gpu(host.tensor<float>({1, 2}, {2, 2})),
               masked = CudaTest::to_gpu(
                   host.tensor<float>({1, 2}, std::vector<float>(2, -std::numeric_limits<float>::infinity())));
  const auto loss_of = [&](const Tensor& first, const Tensor& second) {
    const Tensor loss = poisoned({1}, DType::f32), losses = poisoned({1}, DType::f32), lse = poisoned({1}, DType::f32);
    kernels::cross_entropy_part(gpu(), parts.narrow(0, 0, 1).reshape({2, 1}), first, targets, weights, {0, 2});
    kernels::cross_entropy_part(gpu(), parts.narrow(0, 1, 1).reshape({2, 1}), second, targets, weights, {2, 2});
    kernels::cross_entropy_combine(gpu(), loss, losses, lse, parts, weights);
    return values(to_host(loss))[0];
  };
  EXPECT_NEAR(loss_of(finite, masked), std::log(2.0), 1e-6);
  EXPECT_TRUE(std::isnan(loss_of(masked, masked)));
}

// Rows begin at any address, and gradients at another.
TEST_F(CrossEntropyOnGpu, NeedsNoAlignment) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const int64_t T = 3, V = 1003;
    const Case c = make(dtype, T, V);
    const Tensor dloss = host.normal({1}, c.weights.dtype(), "dloss");
    const Results expected = run(host.stream, c, dloss, host.poisoned({T, V}, dtype));
    for (const int64_t shift : {1, 5}) {
      const auto shifted = [&] { return poisoned({T * V + shift}, dtype).narrow(0, shift, T * V).reshape({T, V}); };
      Case moved = to_gpu(c);
      moved.logits = shifted();
      gpu().write(moved.logits, c.logits.raw());
      const Results out = run(gpu(), moved, CudaTest::to_gpu(dloss), poisoned({T, V}, dtype));
      EXPECT_TRUE(agree(out.losses, expected.losses, 1e-5, 1e-5));
      EXPECT_TRUE(agree(out.dlogits, expected.dlogits, near_zero(dtype), tolerance(dtype)));
    }
  }
}

// Equal rows, of which each begins at another address.
TEST_F(CrossEntropyOnGpu, APlaceChangesNoBit) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int64_t V : {1, 257, 1002, 30001}) {
      SCOPED_TRACE(cat(dtype, " ", V));
      const int64_t T = 17;
      const Tensor row = host.normal({1, V}, dtype, "row", 3), logits = host.stream.empty({T, V}, dtype);
      const Tensor weights = host.stream.empty({T}, accumulator(dtype)), targets = host.stream.empty({T}, DType::i32);
      for (int64_t t = 0; t < T; ++t) host.stream.copy(logits.narrow(0, t, 1), row);
      dispatch_floating(weights.dtype(), [&]<class A>() { std::ranges::fill(weights.span<A>(), A(1.0f)); });
      std::ranges::fill(targets.span<int32_t>(), static_cast<int32_t>(V / 2));
      const Case c{logits, weights, targets, V};
      const Results out = run(gpu(), to_gpu(c), {}, poisoned({T, V}, dtype));
      const auto lse = values(to_host(out.lse)), losses = values(to_host(out.losses));
      EXPECT_EQ(lse, std::vector<double>(lse.size(), lse[0]));
      EXPECT_EQ(losses, std::vector<double>(losses.size(), losses[0]));
      const Results expected = run(host.stream, c, {}, host.poisoned({T, V}, dtype));
      const double narrow = dtype == DType::f64 ? 1e-12 : 1e-5;
      EXPECT_TRUE(agree(out.lse, expected.lse, narrow, narrow));
    }
}

TEST_F(CrossEntropyOnGpu, ExtremeLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto loss_of = [&](const std::vector<float>& logits) {
    const auto V = static_cast<int64_t>(logits.size());
    const Case c{host.tensor<float>({1, V}, logits), host.tensor<float>({1}, {1}), host.tensor<int32_t>({1}, {0}), V};
    const Tensor dloss = CudaTest::to_gpu(host.tensor<float>({1}, {1}));
    return values(to_host(run(gpu(), to_gpu(c), dloss, poisoned({1, V}, DType::f32)).loss))[0];
  };
  EXPECT_TRUE(std::isfinite(loss_of({3e38f, -3e38f, 3e38f})));
  EXPECT_NEAR(loss_of({1, -infinity, 1}), std::log(2.0), 1e-6);
  EXPECT_TRUE(std::isnan(loss_of({1, std::nanf(""), 1})));
  EXPECT_TRUE(std::isnan(loss_of(std::vector<float>(5, -infinity))));
  std::vector<float> late(5000, -infinity);  // most threads see only masked logits
  late[0] = late[4999] = 2;
  EXPECT_NEAR(loss_of(late), std::log(2.0), 1e-6);
}

// The op: the gradient that is computed with the loss equals the backward's, and takes no memory besides the logits'.
TEST_F(CrossEntropyOnGpu, GradientCanBeComputedWithTheLoss) {
  constexpr int64_t T = 96, V = 4104;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor x = CudaTest::to_gpu(host.normal({T, V}, dtype, "x", 3));
    const Tensor weights = CudaTest::to_gpu(host.normal({T}, accumulator(dtype), "weights"));
    const Tensor targets = gpu().zeros({T}, DType::i32);
    const auto train = [&](ops::LossGradient gradient) {
      Tape tape(gpu());
      const Var in = tape.input(x);
      const Var loss = ops::cross_entropy(tape, ops::scale(tape, in, 2), targets, weights, gradient).loss;
      const int64_t held = gpu().arena().live(MemoryTag::activations);
      tape.backward({{loss, {}}});
      return std::tuple(to_host(loss.value()), to_host(tape.gradient(in)), held);
    };
    const auto [loss, dx, held] = train(ops::LossGradient::any);
    const auto [loss_at_once, dx_at_once, held_at_once] = train(ops::LossGradient::one);
    EXPECT_TRUE(testing::close(loss_at_once, loss, 0, tolerance(DType::f32)));
    EXPECT_TRUE(testing::close(dx_at_once, dx, near_zero(dtype), tolerance(dtype)));
    EXPECT_LE(held_at_once, held);
  }
}

}  // namespace
}  // namespace witan
