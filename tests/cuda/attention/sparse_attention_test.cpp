// The twins of sparse attention agree: the indexer's scores, choices to the bit, attention to chosen keys and its
// gradients, the loss, and steps of generation.
#include "witan/kernels/attention/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "support/cuda_rank.h"

namespace witan {
namespace {

using kernels::KeyRows;
using testing::CudaTest;
using testing::values;

class SparseAttentionTwins : public CudaTest {
 protected:
  static constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  static constexpr int64_t B = 2, S = 333, T = B * S, K = 37;
  // Channels that fill no warp, and those of DeepSeek-V3.2.
  struct Sizes {
    int64_t index_heads, d, heads, hd, hd_v;
  };
  static constexpr Sizes kSizes[] = {{3, 20, 2, 24, 40}, {16, 128, 2, 192, 128}};

  struct Pair {
    Tensor cpu, gpu;
  };
  Pair values_of(const Shape& shape, DType dtype, std::string_view name, double scale = 1) {
    const Tensor cpu = host.normal(shape, dtype, name, scale);
    return {cpu, to_gpu(cpu)};
  }
  Pair output(const Shape& shape, DType dtype) { return {host.poisoned(shape, dtype), poisoned(shape, dtype)}; }
  Pair indices(const Shape& shape, DType dtype = DType::i32) {
    return {host.stream.empty(shape, dtype), poisoned(shape, dtype)};
  }
  void expect_close(const Pair& pair, const char* what, double scale = 10) {
    const double allowed = scale * tolerance(pair.cpu.dtype());
    EXPECT_TRUE(agree(pair.gpu, pair.cpu, allowed, allowed)) << what << " " << pair.cpu.dtype() << pair.cpu.shape();
  }
  void expect_equal(const Pair& pair, const char* what) {
    EXPECT_EQ(to_host(pair.gpu).to_vector<int32_t>(), pair.cpu.to_vector<int32_t>()) << what;
  }
  // Documents of 1, 2, … tokens, the last of them padding.
  Pair documents() {
    std::vector<int32_t> all;
    for (int64_t b = 0; b < B; ++b)
      for (int32_t id = 0, left = static_cast<int32_t>(S); left > 0; ++id)
        for (int32_t i = 0; i < 40 * id + 1 && left > 0; ++i, --left) all.push_back(left < 20 ? -1 : id);
    const Tensor cpu = host.tensor<int32_t>({B, S}, all);
    return {cpu, to_gpu(cpu)};
  }
  static KeyRows rows(const Tensor& ids, int64_t first = 0) {
    return {.rows = B, .slots = S, .ids = ids, .first = first};
  }

  struct Index {
    Pair q, w, k;
    kernels::IndexInputs cpu(const KeyRows& where) const { return {q.cpu, w.cpu, k.cpu, 0.05, where}; }
    kernels::IndexInputs gpu(const KeyRows& where) const { return {q.gpu, w.gpu, k.gpu, 0.05, where}; }
  };
  Index index(const Sizes& n, DType dtype) {
    return {values_of({T, n.index_heads, n.d}, dtype, "index q"), values_of({T, n.index_heads}, dtype, "index w"),
            values_of({B, S, n.d}, dtype, "index k")};
  }
  // [T S]: the pairs of which some head's product is so close to 0 that rounding may decide whether max(., 0) has a
  // slope.
  static std::vector<bool> near_a_corner(const Index& in) {
    const auto q = values(in.q.cpu), k = values(in.k.cpu);
    const int64_t H = in.q.cpu.size(1), d = in.q.cpu.size(2);
    std::vector<bool> near(static_cast<size_t>(T * S));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t j = 0; j <= t % S; ++j)
        for (int64_t h = 0; h < H; ++h) {
          const auto *a = q.data() + (t * H + h) * d, *b = k.data() + (t / S * S + j) * d;
          if (std::abs(std::inner_product(a, a + d, b, 0.0)) < 1e-3) near[static_cast<size_t>(t * S + j)] = true;
        }
    return near;
  }
  // The choice of the CPU, for both.
  Pair choice(const Index& of, const Pair& ids) {
    const Tensor scores = host.stream.empty({T, S}, accumulator(of.q.cpu.dtype())),
                 chosen = host.stream.empty({T, K}, DType::i32);
    kernels::index_scores(host.stream, scores, of.cpu(rows(ids.cpu)));
    kernels::choose_keys(host.stream, chosen, scores);
    return {chosen, to_gpu(chosen)};
  }

  struct Attention {
    Pair q, k, v, dy, chosen;
    Tensor ids;  // on the GPU

    // y, lse, dq, dk, dv
    std::vector<Tensor> on_tensor_cores(SparseAttentionTwins& test) const {
      const kernels::SparseInputs in{q.gpu, k.gpu, v.gpu, chosen.gpu, rows(ids), 0.1};
      const DType dtype = q.gpu.dtype();
      const Tensor y = test.poisoned(dy.gpu.shape(), dtype), lse = test.poisoned({B, q.gpu.size(1), S}, DType::f32);
      const auto memory = [&] {
        const kernels::SparseMemory out = kernels::sparse_memory(test.gpu(), in);
        test.poison({&out.chunks, &out.mask});
        return out;
      };
      kernels::sparse_attention_forward(test.gpu(), y, lse, in, memory());
      const kernels::SparseGradients to{test.poisoned(q.gpu.shape(), dtype), test.poisoned(k.gpu.shape(), dtype),
                                        test.poisoned(v.gpu.shape(), dtype),
                                        test.poisoned({T, q.gpu.size(1)}, DType::f32), memory()};
      kernels::sparse_attention_backward(test.gpu(), to, dy.gpu, y, lse, in, {});
      std::vector<Tensor> out;
      for (const Tensor& x : {y, lse, to.dq, to.dk, to.dv}) out.push_back(test.to_host(x));
      return out;
    }
    // The same in float64 on the CPU.
    std::vector<Tensor> exactly(SparseAttentionTwins& test) const {
      const auto wide = [&](const Tensor& x) { return test.in_float64(x); };
      const auto output = [&](const Shape& shape) { return test.host.poisoned(shape, DType::f64); };
      const kernels::SparseInputs in{wide(q.cpu), wide(k.cpu), wide(v.cpu), chosen.cpu, rows({}), 0.1};
      const Tensor y = output(dy.cpu.shape()), lse = output({B, q.cpu.size(1), S}),
                   begin = test.host.stream.empty({T + 1}, DType::i64),
                   tokens = test.host.stream.empty({T * K}, DType::i32);
      kernels::sparse_attention_forward(test.host.stream, y, lse, in);
      kernels::choosers_of_keys(test.host.stream, {begin, tokens}, chosen.cpu, in.where);
      const kernels::SparseGradients to{output(q.cpu.shape()), output(k.cpu.shape()), output(v.cpu.shape()),
                                        output({T, q.cpu.size(1)})};
      kernels::sparse_attention_backward(test.host.stream, to, wide(dy.cpu), y, lse, in, {begin, tokens});
      return {y, lse, to.dq, to.dk, to.dv};
    }
  };
  Attention attention(const Sizes& n, DType dtype, const Pair& ids) {
    return {values_of({T, n.heads, n.hd}, dtype, "q"),      values_of({B, S, n.heads, n.hd}, dtype, "k"),
            values_of({B, S, n.heads, n.hd_v}, dtype, "v"), values_of({T, n.heads, n.hd_v}, dtype, "dy"),
            choice(index(kSizes[0], dtype), ids),           ids.gpu};
  }
};

TEST_F(SparseAttentionTwins, ScoresAndTheirGradients) {
  const Pair ids = documents();
  for (const DType dtype : kDTypes)
    for (const Sizes& n : kSizes) {
      const Index in = index(n, dtype);
      const Pair scores = output({T, S}, accumulator(dtype));
      kernels::index_scores(host.stream, scores.cpu, in.cpu(rows(ids.cpu)));
      kernels::index_scores(gpu(), scores.gpu, in.gpu(rows(ids.gpu)));
      const auto expected = values(scores.cpu), found = values(to_host(scores.gpu));
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(std::isinf(found[i]), std::isinf(expected[i])) << i;
        if (std::isinf(expected[i])) continue;
        ASSERT_NEAR(found[i], expected[i], 1e-4 * (1 + std::abs(expected[i]))) << i;
      }
      const Pair g = values_of({T, S}, accumulator(dtype), "dscores", 0.1);
      const auto doubtful = near_a_corner(in);
      dispatch_floating(g.cpu.dtype(), [&]<class A>() {
        for (size_t i = 0; i < expected.size(); ++i)
          if (std::isinf(expected[i]) || doubtful[i]) g.cpu.span<A>()[i] = A(0.0);
      });
      const Pair dscores{g.cpu, to_gpu(g.cpu)};
      const Pair dq = output(in.q.cpu.shape(), dtype), dw = output(in.w.cpu.shape(), dtype),
                 dk = values_of(in.k.cpu.shape(), accumulator(dtype), "dk");
      kernels::index_scores_backward(host.stream, {dq.cpu, dw.cpu, dk.cpu}, dscores.cpu, in.cpu(rows(ids.cpu)));
      kernels::index_scores_backward(gpu(), {dq.gpu, dw.gpu, dk.gpu}, dscores.gpu, in.gpu(rows(ids.gpu)));
      expect_close(dq, "dq", 100);
      expect_close(dw, "dw", 100);
      expect_close(dk, "dk", 1000);
    }
}

// Scores of a few values only have many that are equal.
TEST_F(SparseAttentionTwins, ChoicesAreEqual) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const double levels : {1e9, 3.0}) {
      const Tensor cpu = host.normal({T, S}, dtype, "scores");
      dispatch_floating(dtype, [&]<class A>() {
        for (int64_t i = 0; i < T * S; ++i) {
          A& x = cpu.span<A>()[static_cast<size_t>(i)];
          const double rounded = std::round(static_cast<double>(x) * levels) / levels;
          x = A(i % S > i / S % S ? -std::numeric_limits<double>::infinity() : rounded);
        }
      });
      const Pair scores{cpu, to_gpu(cpu)}, chosen = indices({T, K});
      kernels::choose_keys(host.stream, chosen.cpu, scores.cpu);
      kernels::choose_keys(gpu(), chosen.gpu, scores.gpu);
      expect_equal(chosen, "chosen");
      kernels::keep_chosen(host.stream, scores.cpu, chosen.cpu);
      kernels::keep_chosen(gpu(), scores.gpu, chosen.gpu);
      EXPECT_EQ(values(to_host(scores.gpu)), values(scores.cpu));
      const Pair begin = indices({T + 1}, DType::i64), tokens = indices({T * K});
      kernels::choosers_of_keys(host.stream, {begin.cpu, tokens.cpu}, chosen.cpu, rows({}));
      kernels::choosers_of_keys(gpu(), {begin.gpu, tokens.gpu}, chosen.gpu, rows({}));
      EXPECT_EQ(to_host(begin.gpu).to_vector<int64_t>(), begin.cpu.to_vector<int64_t>());
      const int64_t used = begin.cpu.data<int64_t>()[T];
      expect_equal({tokens.cpu.narrow(0, 0, used), tokens.gpu.narrow(0, 0, used)}, "tokens");
    }
}

TEST_F(SparseAttentionTwins, AttentionToChosenKeysAndItsGradients) {
  const Pair ids = documents();
  for (const DType dtype : kDTypes)
    for (const Sizes& n : kSizes) {
      const Pair chosen = choice(index(n, dtype), ids);
      const Pair q = values_of({T, n.heads, n.hd}, dtype, "q"), k = values_of({B, S, n.heads, n.hd}, dtype, "k"),
                 v = values_of({B, S, n.heads, n.hd_v}, dtype, "v"), dy = values_of({T, n.heads, n.hd_v}, dtype, "dy");
      const kernels::SparseInputs cpu{q.cpu, k.cpu, v.cpu, chosen.cpu, rows(ids.cpu), 0.1},
          of_gpu{q.gpu, k.gpu, v.gpu, chosen.gpu, rows(ids.gpu), 0.1};
      const DType wide = accumulator(dtype);
      const Pair y = output(dy.cpu.shape(), dtype), lse = output({B, n.heads, S}, wide);
      kernels::sparse_attention_forward(host.stream, y.cpu, lse.cpu, cpu);
      kernels::sparse_attention_forward(gpu(), y.gpu, lse.gpu, of_gpu);
      expect_close(y, "y");
      expect_close(lse, "lse");
      const Pair begin = indices({T + 1}, DType::i64), tokens = indices({T * K});
      kernels::choosers_of_keys(host.stream, {begin.cpu, tokens.cpu}, chosen.cpu, cpu.where);
      kernels::choosers_of_keys(gpu(), {begin.gpu, tokens.gpu}, chosen.gpu, of_gpu.where);
      const Pair dq = output(q.cpu.shape(), dtype), dk = output(k.cpu.shape(), dtype),
                 dv = output(v.cpu.shape(), dtype), delta = output({T, n.heads}, wide);
      kernels::sparse_attention_backward(host.stream, {dq.cpu, dk.cpu, dv.cpu, delta.cpu}, dy.cpu, y.cpu, lse.cpu, cpu,
                                         {begin.cpu, tokens.cpu});
      kernels::sparse_attention_backward(gpu(), {dq.gpu, dk.gpu, dv.gpu, delta.gpu}, dy.gpu, y.gpu, lse.gpu, of_gpu,
                                         {begin.gpu, tokens.gpu});
      expect_close(dq, "dq", 100);
      expect_close(dk, "dk", 100);
      expect_close(dv, "dv", 100);
      const Tensor first = to_host(dk.gpu);
      kernels::sparse_attention_backward(gpu(), {dq.gpu, dk.gpu, dv.gpu, delta.gpu}, dy.gpu, y.gpu, lse.gpu, of_gpu,
                                         {begin.gpu, tokens.gpu});
      EXPECT_EQ(values(to_host(dk.gpu)), values(first)) << "repeats to the bit";
    }
}

// Heads of each width of tiles; a rounding to bfloat16 is a distance of 1.7e-3.
TEST_F(SparseAttentionTwins, TensorCoresAgreeWithFloat64) {
  const char* const names[] = {"y", "lse", "dq", "dk", "dv"};
  const Pair ids = documents();
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Sizes& n : {kSizes[0], kSizes[1], Sizes{3, 20, 2, 96, 128}, Sizes{3, 20, 1, 256, 256}}) {
      const Attention in = attention(n, dtype, ids);
      const std::vector<Tensor> found = in.on_tensor_cores(*this), again = in.on_tensor_cores(*this),
                                exact = in.exactly(*this);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_LT(distance(found[i], exact[i]), 6e-3) << names[i] << ", heads of " << n.hd << " and " << n.hd_v;
        EXPECT_EQ(values(found[i]), values(again[i])) << names[i];
      }
    }
}

// A row of two documents, and the second one alone.
TEST_F(SparseAttentionTwins, PackingChangesNoBitOfADocument) {
  constexpr int64_t kBefore = 101, kRow = 300, kAlone = kRow - kBefore;
  const Sizes n = kSizes[1];
  const Pair q = values_of({kRow, n.heads, n.hd}, DType::bf16, "q"), k = values_of(q.cpu.shape(), DType::bf16, "k"),
             v = values_of({kRow, n.heads, n.hd_v}, DType::bf16, "v"), dy = values_of(v.cpu.shape(), DType::bf16, "dy"),
             index_q = values_of({kRow, n.index_heads, n.d}, DType::bf16, "index q"),
             w = values_of({kRow, n.index_heads}, DType::bf16, "w"), index_k = values_of({kRow, n.d}, DType::bf16, "k");
  std::vector<int32_t> row(kRow);
  for (int64_t i = kBefore; i < kRow; ++i) row[static_cast<size_t>(i)] = 1;
  const Tensor ids = to_gpu(host.tensor<int32_t>({1, kRow}, row));
  const auto run = [&](int64_t first, const Tensor& documents) {
    const int64_t count = kRow - first;
    const auto part = [&](const Pair& x) { return x.gpu.narrow(0, first, count); };
    const auto keys = [&](const Pair& x) {
      const Tensor of = part(x);
      return of.shape().dims() == 2 ? of.reshape({1, count, of.size(1)})
                                    : of.reshape({1, count, of.size(1), of.size(2)});
    };
    const KeyRows where{.rows = 1, .slots = count, .ids = documents};
    const kernels::IndexInputs index{part(index_q), part(w), keys(index_k), 0.05, where};
    const Tensor scores = poisoned({count, count}, DType::f32), chosen = poisoned({count, K}, DType::i32);
    kernels::index_scores(gpu(), scores, index);
    kernels::choose_keys(gpu(), chosen, scores);
    const kernels::SparseInputs in{part(q), keys(k), keys(v), chosen, where, 0.1};
    const Tensor y = poisoned(part(v).shape(), DType::bf16), lse = poisoned({1, n.heads, count}, DType::f32),
                 p = poisoned({count, count}, DType::f32), divergence = poisoned({count}, DType::f32);
    kernels::sparse_attention_forward(gpu(), y, lse, in, kernels::sparse_memory(gpu(), in));
    const kernels::SparseGradients to{poisoned(part(q).shape(), DType::bf16), poisoned(in.k.shape(), DType::bf16),
                                      poisoned(in.v.shape(), DType::bf16), poisoned({count, n.heads}, DType::f32),
                                      kernels::sparse_memory(gpu(), in)};
    kernels::sparse_attention_backward(gpu(), to, part(dy), y, lse, in, {});
    kernels::keep_chosen(gpu(), scores, chosen);
    kernels::attention_distribution(gpu(), p, lse, in, n.heads);
    kernels::index_divergence(gpu(), divergence, scores, p, {});
    const Tensor dq = poisoned(index.q.shape(), DType::bf16), dw = poisoned(index.w.shape(), DType::bf16),
                 dk = to_gpu(host.stream.zeros(index.k.shape(), DType::f32));
    kernels::index_scores_backward(gpu(), {dq, dw, dk}, scores, index);
    std::vector<std::vector<double>> out;
    for (const Tensor& x : {y, to.dq, to.dk.reshape(part(k).shape()), to.dv.reshape(part(v).shape()), divergence, dq,
                            dw, dk.reshape(part(index_k).shape())})
      out.push_back(values(to_host(x.narrow(0, kBefore - first, kAlone))));
    return out;
  };
  const auto together = run(0, ids), alone = run(kBefore, {});
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i], together[i]) << "tensor " << i;
}

TEST_F(SparseAttentionTwins, DistributionsAndDivergences) {
  const Pair ids = documents();
  for (const DType dtype : kDTypes)
    for (const bool sparse : {false, true}) {
      const Sizes n = kSizes[0];
      const Index in = index(n, dtype);
      const Pair chosen = choice(in, ids);
      const DType wide = accumulator(dtype);
      const Pair q = values_of({T, n.heads, n.hd}, dtype, "q"), k = values_of({B, S, n.heads, n.hd}, dtype, "k"),
                 lse = values_of({B, n.heads, S}, wide, "lse");
      constexpr int64_t kFirst = 300, kCount = 90;  // tokens of both rows
      const auto part = [&](const Tensor& x) { return x.narrow(0, kFirst, kCount); };
      const Pair scores = output({kCount, S}, wide), p = output({kCount, S}, wide), divergence = output({kCount}, wide);
      const auto run = [&](Stream& stream, Tensor Pair::*of) {
        const KeyRows where = rows(ids.*of, kFirst);
        kernels::index_scores(stream, scores.*of, {part(in.q.*of), part(in.w.*of), in.k.*of, 0.05, where});
        if (sparse) kernels::keep_chosen(stream, scores.*of, part(chosen.*of));
        kernels::attention_distribution(stream, p.*of, lse.*of,
                                        {part(q.*of), k.*of, {}, sparse ? part(chosen.*of) : Tensor(), where, 0.1}, 4);
        kernels::index_divergence(stream, divergence.*of, scores.*of, p.*of, part((ids.*of).reshape({T})));
      };
      run(host.stream, &Pair::cpu);
      run(gpu(), &Pair::gpu);
      expect_close(p, "p", 100);
      expect_close(divergence, "divergence", 1000);
      expect_close(scores, "gradient of scores", 100);
    }
}

TEST_F(SparseAttentionTwins, MeansAndScales) {
  for (const DType dtype : kDTypes) {
    const DType wide = accumulator(dtype);
    const Pair of = values_of({T}, wide, "values"), ids = documents(), mean = output({1}, wide),
               share = output({1}, wide), x = values_of({5, 77}, dtype, "x"), y = output({5, 77}, dtype);
    kernels::mean_over_tokens(host.stream, mean.cpu, share.cpu, of.cpu, ids.cpu.reshape({T}));
    kernels::mean_over_tokens(gpu(), mean.gpu, share.gpu, of.gpu, ids.gpu.reshape({T}));
    expect_close(mean, "mean");
    expect_close(share, "share");
    kernels::scale_by(host.stream, y.cpu, x.cpu, mean.cpu, share.cpu);
    kernels::scale_by(gpu(), y.gpu, x.gpu, mean.gpu, share.gpu);
    expect_close(y, "y");
  }
}

TEST_F(SparseAttentionTwins, StepsOfGeneration) {
  const Tensor row_of = host.tensor<int32_t>({4}, {1, 0, 0, 1}),
               positions = host.tensor<int32_t>({4}, {17, 0, 332, 200});
  const KeyRows cpu{.rows = B, .slots = S, .row_of = row_of, .positions = positions},
      of_gpu{.rows = B, .slots = S, .row_of = to_gpu(row_of), .positions = to_gpu(positions)};
  for (const DType dtype : kDTypes) {
    const Sizes n = kSizes[0];
    const Pair index_q = values_of({4, n.index_heads, n.d}, dtype, "index q"),
               w = values_of({4, n.index_heads}, dtype, "w"), index_k = values_of({B, S, 1, n.d}, dtype, "index k"),
               scores = output({4, S}, accumulator(dtype)), chosen = indices({4, K});
    kernels::index_scores(host.stream, scores.cpu, {index_q.cpu, w.cpu, index_k.cpu, 1, cpu});
    kernels::index_scores(gpu(), scores.gpu, {index_q.gpu, w.gpu, index_k.gpu, 1, of_gpu});
    kernels::choose_keys(host.stream, chosen.cpu, scores.cpu);
    kernels::choose_keys(gpu(), chosen.gpu, to_gpu(scores.cpu));
    expect_equal(chosen, "chosen");
    const Pair q = values_of({4, n.heads, n.hd}, dtype, "q"), k = values_of({B, S, n.heads, n.hd}, dtype, "k"),
               v = values_of({B, S, n.heads, n.hd_v}, dtype, "v"), y = output({4, n.heads, n.hd_v}, dtype);
    kernels::sparse_attention_forward(host.stream, y.cpu, {}, {q.cpu, k.cpu, v.cpu, chosen.cpu, cpu, 0.1});
    kernels::sparse_attention_forward(gpu(), y.gpu, {}, {q.gpu, k.gpu, v.gpu, chosen.gpu, of_gpu, 0.1});
    expect_close(y, "y");
  }
}

}  // namespace
}  // namespace witan
