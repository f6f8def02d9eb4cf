// Attention of single tokens to latents on the GPU against the CPU: on the tensor cores and without them, any number of
// heads, windows in rings, caches in e4m3.
#include "support/cuda_rank.h"
#include "witan/kernels/attention/kv_cache.h"

namespace witan {
namespace {

using testing::values;

struct Size {
  int64_t H, latent, turning, slots, window;
  std::vector<int32_t> positions;
};

// DeepSeek's sizes; those of smaller models; rows that are not whole packs; a ring.
const Size kSizes[] = {{16, 512, 64, 4096, 0, {4095, 1, 700}},
                       {128, 512, 64, 300, 0, {299, 17}},
                       {40, 256, 32, 500, 0, {499, 250, 31, 32, 33}},
                       {7, 64, 16, 90, 0, {0, 89}},
                       {3, 10, 4, 130, 0, {64, 129}},
                       {20, 512, 64, 80, 40, {1000, 5, 79, 39, 40}},
                       {9, 320, 48, 7, 1, {100, 0}}};

class CudaCachedLatents : public testing::CudaTest {
 protected:
  // Row t of the caches belongs to token T - 1 - t.
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
  // All slots of all rows.
  kernels::CacheTokens all_slots(int64_t rows, int64_t slots) {
    kernels::CacheTokens tokens;
    std::vector<int32_t> row_of, positions;
    for (int64_t row = 0; row < rows; ++row) {
      tokens.runs.push_back({row, 0, slots});
      for (int64_t slot = 0; slot < slots; ++slot)
        row_of.push_back(static_cast<int32_t>(row)), positions.push_back(static_cast<int32_t>(slot));
    }
    tokens.rows = host.tensor<int32_t>({rows * slots}, row_of);
    tokens.positions = host.tensor<int32_t>({rows * slots}, positions);
    return tokens;
  }

  void check(const Size& s, DType dtype, bool fp8) {
    SCOPED_TRACE(cat(dtype, fp8 ? " in e4m3, " : ", ", s.H, " heads, ", s.latent, " + ", s.turning, ", ", s.slots,
                     " slots, window ", s.window));
    const auto T = static_cast<int64_t>(s.positions.size());
    const DType wide = accumulator(dtype);
    const Tensor q = host.normal({T, 1, s.H, s.turning}, dtype, "q"),
                 value_q = host.normal({T, 1, s.H, s.latent}, dtype, "value q");
    Tensor keys = host.normal({T, s.slots, 1, s.turning}, dtype, "k"),
           cached = host.normal({T, s.slots, 1, s.latent}, dtype, "v"), key_scales, value_scales;
    if (fp8) {
      const auto quantise = [&](Tensor& cache, Tensor& scales) {
        const Tensor x = cache.reshape({1, T * s.slots, 1, cache.size(3)});
        cache = host.stream.empty(cache.shape(), DType::f8);
        scales = host.stream.empty({T, s.slots, 1}, DType::f32);
        kernels::append_quantised(host.stream, cache, scales, x, all_slots(T, s.slots));
      };
      quantise(keys, key_scales);
      quantise(cached, value_scales);
    }
    kernels::CacheTokens tokens = tokens_of(s.positions);
    const double scale = 1 / std::sqrt(double(s.latent + s.turning));
    const Tensor y = host.poisoned({T, 1, s.H, s.latent}, dtype), lse = host.poisoned({T, s.H, 1}, wide);
    kernels::cached_attention(host.stream, y, lse,
                              {q, keys, cached, tokens, scale, s.window, false, value_q, key_scales, value_scales});
    tokens.rows = to_gpu(tokens.rows), tokens.positions = to_gpu(tokens.positions);
    const kernels::CachedInputs in{
        to_gpu(q),       to_gpu(keys),       to_gpu(cached),      tokens, scale, s.window, false,
        to_gpu(value_q), to_gpu(key_scales), to_gpu(value_scales)};
    const Tensor y_gpu = poisoned(y.shape(), dtype), lse_gpu = poisoned(lse.shape(), wide),
                 again = poisoned(y.shape(), dtype);
    kernels::cached_attention(gpu(), y_gpu, lse_gpu, in);
    kernels::cached_attention(gpu(), again, {}, in);
    const double of_y = size_of(dtype) == 2 ? 2e-2 : dtype == DType::f32 ? 1e-5 : 1e-13;
    EXPECT_TRUE(agree(y_gpu, y, of_y, of_y));
    // Tensor cores read e4m3 times its scale, rounded to the dtype.
    const double of_lse = size_of(dtype) == 2 ? 1e-2 : 10 * tolerance(wide);
    EXPECT_TRUE(agree(lse_gpu, lse, of_lse, of_lse));
    EXPECT_EQ(values(to_host(again)), values(to_host(y_gpu)));
  }
};

TEST_F(CudaCachedLatents, AgreeWithTheCpuAndRepeat) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Size& size : kSizes)
      for (const bool fp8 : {false, true}) check(size, dtype, fp8);
}

TEST_F(CudaCachedLatents, OfManyTextsAgreeWithTheCpu) {
  Size many{32, 512, 64, 200, 0, {}};
  for (int32_t text = 0; text < 70; ++text) many.positions.push_back(text * 37 % 200);
  for (const bool fp8 : {false, true}) check(many, DType::bf16, fp8);
}

}  // namespace
}  // namespace witan
