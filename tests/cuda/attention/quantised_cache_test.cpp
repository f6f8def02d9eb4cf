// Caches in e4m3 on the GPU: the CPU's bits when they are written, and its attention when they are read.
#include <limits>

#include "support/attention.h"
#include "support/cuda_rank.h"
#include "witan/kernels/attention/kv_cache.h"

namespace witan {
namespace {

using kernels::CacheTokens;
using testing::cache_tokens;
using testing::values;

class CudaQuantisedCache : public testing::CudaTest {
 protected:
  CacheTokens tokens_on_gpu(const CacheTokens& tokens) {
    return {tokens.runs, to_gpu(tokens.rows), to_gpu(tokens.positions)};
  }
  static std::vector<uint8_t> bytes_of(const Tensor& tensor) {
    const auto* const first = reinterpret_cast<const uint8_t*>(tensor.raw());
    return {first, first + tensor.bytes()};
  }
};

TEST_F(CudaQuantisedCache, IsWrittenWithTheBitsOfTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int64_t hd : {5, 16, 128, 512}) {
      SCOPED_TRACE(cat(dtype, ", heads of ", hd));
      const Tensor cache = host.stream.empty({3, 7, 2, hd}, DType::f8), scales = host.poisoned({3, 7, 2}, DType::f32);
      std::fill_n(reinterpret_cast<uint8_t*>(cache.raw()), cache.bytes(), uint8_t{0x33});
      const Tensor there = to_gpu(cache), scales_there = to_gpu(scales);
      const CacheTokens tokens = cache_tokens(host, {{2, 5, 4}, {0, 9, 1}, {1, 0, 7}});
      const Tensor x = host.normal({1, 12, 2, hd}, dtype, "x");
      dispatch_floating(dtype, [&]<class T>() {
        std::fill_n(x.data<T>(), hd, T(0.f));
        x.data<T>()[3 * hd] = T(std::numeric_limits<float>::quiet_NaN());
      });
      kernels::append_quantised(host.stream, cache, scales, x, tokens);
      kernels::append_quantised(gpu(), there, scales_there, to_gpu(x), tokens_on_gpu(tokens));
      EXPECT_EQ(bytes_of(to_host(there)), bytes_of(cache));
      EXPECT_EQ(bytes_of(to_host(scales_there)), bytes_of(scales));
    }
}

struct Size {
  int64_t H, G, hd, hd_v, slots, window;
  std::vector<int32_t> positions;
};

const Size kSizes[] = {{4, 2, 64, 64, 300, 0, {0, 299, 17}},
                       {8, 1, 128, 128, 900, 0, {3, 899}},
                       {6, 2, 24, 40, 130, 0, {64, 129}},
                       {5, 5, 17, 5, 90, 0, {89, 1}},
                       {32, 4, 128, 128, 4096, 0, {4095, 1, 700}},
                       {4, 4, 192, 128, 500, 0, {499, 250}},
                       {2, 1, 256, 512, 200, 0, {199}},
                       {8, 2, 64, 64, 128, 64, {1000, 5, 127}}};

TEST_F(CudaQuantisedCache, IsReadAsTheCpuReadsIt) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Size& s : kSizes) {
      SCOPED_TRACE(cat(dtype, ", ", s.H, " heads of ", s.hd, ", ", s.hd_v, ", ", s.slots, " slots, window ", s.window));
      const auto T = static_cast<int64_t>(s.positions.size());
      std::vector<kernels::CacheRun> all, last;
      for (int64_t row = 0; row < T; ++row) {
        all.push_back({row, 0, s.slots});
        last.push_back({row, s.positions[size_t(row)], 1});
      }
      const auto quantised = [&](int64_t dim, const char* name) {
        const Tensor cache = host.stream.empty({T, s.slots, s.G, dim}, DType::f8),
                     scales = host.stream.empty({T, s.slots, s.G}, DType::f32);
        kernels::append_quantised(host.stream, cache, scales, host.normal({1, T * s.slots, s.G, dim}, dtype, name),
                                  cache_tokens(host, all));
        return std::pair{cache, scales};
      };
      const auto [keys, key_scales] = quantised(s.hd, "k");
      const auto [cached, value_scales] = quantised(s.hd_v, "v");
      const Tensor q = host.normal({T, 1, s.H, s.hd}, dtype, "q"), y = host.poisoned({T, 1, s.H, s.hd_v}, dtype);
      const CacheTokens tokens = cache_tokens(host, last);
      kernels::cached_attention(host.stream, y, {},
                                {q, keys, cached, tokens, 0.2, s.window, false, {}, key_scales, value_scales});
      const Tensor y_gpu = poisoned(y.shape(), dtype);
      kernels::cached_attention(gpu(), y_gpu, {},
                                {to_gpu(q),
                                 to_gpu(keys),
                                 to_gpu(cached),
                                 tokens_on_gpu(tokens),
                                 0.2,
                                 s.window,
                                 false,
                                 {},
                                 to_gpu(key_scales),
                                 to_gpu(value_scales)});
      const double tolerance = size_of(dtype) == 2 ? 2e-2 : dtype == DType::f32 ? 1e-5 : 1e-13;
      EXPECT_TRUE(agree(y_gpu, y, tolerance, tolerance));
    }
}

}  // namespace
}  // namespace witan
