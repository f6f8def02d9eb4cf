// Attention of single tokens on the GPU against the CPU: short and long sequences, windows in rings, groups of any
// number of heads, values of other widths than keys.
#include "support/cuda_rank.h"
#include "witan/kernels/attention/kv_cache.h"

namespace witan {
namespace {

using testing::values;

struct Size {
  int64_t H, G, hd, hd_v, slots, window;
  std::vector<int32_t> positions;
};

const Size kSizes[] = {{4, 2, 64, 64, 300, 0, {0, 299, 17}},
                       {1, 1, 8, 8, 70, 0, {69}},
                       {8, 1, 128, 128, 900, 0, {3, 899}},
                       {6, 2, 24, 40, 130, 0, {64, 129}},
                       {5, 5, 17, 5, 90, 0, {89, 1}},
                       {20, 1, 128, 64, 260, 0, {259}},
                       {32, 4, 128, 128, 4096, 0, {4095, 1, 700}},
                       {4, 4, 192, 128, 500, 0, {499, 250}},
                       {2, 1, 256, 256, 200, 0, {199}},
                       {8, 2, 64, 64, 128, 128, {1000, 5, 127}},
                       {4, 1, 32, 32, 40, 33, {500, 31, 39}},
                       {4, 2, 16, 16, 7, 1, {100, 0}}};

class CudaCachedAttention : public testing::CudaTest {
 protected:
  kernels::CacheTokens tokens_of(const std::vector<int32_t>& positions) {
    kernels::CacheTokens tokens;
    const auto T = static_cast<int64_t>(positions.size());
    std::vector<int32_t> rows;
    for (int64_t t = 0; t < T; ++t) {
      rows.push_back(static_cast<int32_t>(T - 1 - t));
      tokens.runs.push_back({T - 1 - t, positions[size_t(t)], 1});
    }
    tokens.rows = host.tensor<int32_t>({T}, rows);
    tokens.positions = host.tensor<int32_t>({T}, positions);
    return tokens;
  }
};

TEST_F(CudaCachedAttention, AgreesWithTheCpuAndRepeats) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Size& s : kSizes) {
      SCOPED_TRACE(cat(dtype, ", ", s.H, " heads of ", s.hd, ", ", s.hd_v, ", ", s.slots, " slots, window ", s.window));
      const auto T = static_cast<int64_t>(s.positions.size());
      const DType wide = accumulator(dtype);
      const Tensor q = host.normal({T, 1, s.H, s.hd}, dtype, "q"),
                   keys = host.normal({T, s.slots, s.G, s.hd}, dtype, "k"),
                   cached = host.normal({T, s.slots, s.G, s.hd_v}, dtype, "v");
      const Tensor y = host.poisoned({T, 1, s.H, s.hd_v}, dtype), lse = host.poisoned({T, s.H, 1}, wide);
      kernels::CacheTokens tokens = tokens_of(s.positions);
      kernels::cached_attention(host.stream, y, lse, {q, keys, cached, tokens, 0.2, s.window});
      tokens.rows = to_gpu(tokens.rows), tokens.positions = to_gpu(tokens.positions);
      const kernels::CachedInputs in{to_gpu(q), to_gpu(keys), to_gpu(cached), tokens, 0.2, s.window};
      const Tensor y_gpu = poisoned(y.shape(), dtype), lse_gpu = poisoned(lse.shape(), wide),
                   again = poisoned(y.shape(), dtype);
      kernels::cached_attention(gpu(), y_gpu, lse_gpu, in);
      kernels::cached_attention(gpu(), again, {}, in);
      const double of_y = size_of(dtype) == 2 ? 2e-2 : dtype == DType::f32 ? 1e-5 : 1e-13;
      EXPECT_TRUE(agree(y_gpu, y, of_y, of_y));
      EXPECT_TRUE(agree(lse_gpu, lse, 10 * tolerance(wide), 10 * tolerance(wide)));
      EXPECT_EQ(values(to_host(again)), values(to_host(y_gpu)));
    }
}

// Each token has the bits that it has as the last of its whole sequence, whatever tokens come with it.
TEST_F(CudaCachedAttention, BatchInvariantTokensHaveTheBitsOfTheForward) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Size& s : kSizes) {
      SCOPED_TRACE(cat(dtype, ", ", s.H, " heads of ", s.hd, ", ", s.hd_v, ", ", s.slots, " slots, window ", s.window));
      std::vector<int32_t> positions;
      for (const int32_t position : s.positions)
        if (position < s.slots) positions.push_back(position);
      const auto T = static_cast<int64_t>(positions.size());
      const DType wide = accumulator(dtype);
      const Tensor q = to_gpu(host.normal({1, s.slots, s.H, s.hd}, dtype, "q")),
                   keys = to_gpu(host.normal({T, s.slots, s.G, s.hd}, dtype, "k")),
                   cached = to_gpu(host.normal({T, s.slots, s.G, s.hd_v}, dtype, "v"));
      kernels::CacheTokens tokens = tokens_of(positions);
      const std::vector<kernels::CacheRun> runs = tokens.runs;
      tokens.rows = to_gpu(tokens.rows), tokens.positions = to_gpu(tokens.positions);
      const Tensor own = poisoned({T, 1, s.H, s.hd}, dtype), y = poisoned({T, 1, s.H, s.hd_v}, dtype);
      for (int64_t t = 0; t < T; ++t) gpu().copy(own.narrow(0, t, 1), q.narrow(1, runs[size_t(t)].past, 1));
      const Tensor lse = poisoned({T, s.H, 1}, wide);
      kernels::cached_attention(gpu(), y, lse, {own, keys, cached, tokens, 0.2, s.window, true});
      for (int64_t t = 0; t < T; ++t) {
        const auto& [row, past, count] = runs[size_t(t)];
        const int64_t S = past + 1;
        const auto of_row = [&](const Tensor& cache) { return cache.narrow(0, row, 1).narrow(1, 0, S); };
        const Tensor whole = poisoned({1, S, s.H, s.hd_v}, dtype), whole_lse = poisoned({1, s.H, S}, wide);
        kernels::attention_forward(gpu(), whole, whole_lse,
                                   {q.narrow(1, 0, S),
                                    of_row(keys),
                                    of_row(cached),
                                    {},
                                    0.2,
                                    {},
                                    {.one_sequence_per_row = true, .batch_invariant = true},
                                    {},
                                    s.window});
        EXPECT_EQ(values(to_host(y.narrow(0, t, 1))), values(to_host(whole.narrow(1, past, 1)))) << "token " << t;
        const auto all = values(to_host(whole_lse)), last = values(to_host(lse.narrow(0, t, 1)));
        for (int64_t h = 0; h < s.H; ++h) EXPECT_EQ(last[size_t(h)], all[size_t(h * S + past)]) << "token " << t;
      }
    }
}

TEST_F(CudaCachedAttention, AcceptsNoTokens) {
  const Tensor none = to_gpu(host.tensor<int32_t>({0}, {})), cache = poisoned({0, 4, 1, 8}, DType::bf16);
  const Tensor q = poisoned({0, 1, 2, 8}, DType::bf16);
  kernels::cached_attention(gpu(), q, {}, {q, cache, cache, {{}, none, none}});
  gpu().wait();
}

}  // namespace
}  // namespace witan
