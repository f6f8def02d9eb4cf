#include "witan/kernels/kv_cache.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::values;

using CudaAppendToCache = CudaTest;

TEST_F(CudaAppendToCache, WritesItsPositionsOfEveryRowAndNoOther) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int64_t hd : {5, 16, 128}) {  // rows that are no packs of 16 bytes, and rows that are
      const Tensor expected = host.normal({3, 7, 2, hd}, dtype, "cache"), cache = to_gpu(expected);
      int64_t past = 0;
      for (const int64_t S : {4, 1, 2, 0}) {
        const Tensor x = host.normal({3, S, 2, hd}, dtype, cat("x at ", past));
        kernels::append_to_cache(host.stream, expected, x, past);
        kernels::append_to_cache(gpu(), cache, to_gpu(x), past);
        past += S;
        EXPECT_EQ(values(to_host(cache)), values(expected)) << dtype << ", " << past << " positions";
      }
    }
}

TEST_F(CudaAppendToCache, LargeCaches) {
  const Tensor expected = host.normal({4, 600, 4, 128}, DType::bf16, "cache"), cache = to_gpu(expected);
  const Tensor x = host.normal({4, 513, 4, 128}, DType::bf16, "x");
  kernels::append_to_cache(host.stream, expected, x, 61);
  kernels::append_to_cache(gpu(), cache, to_gpu(x), 61);
  EXPECT_EQ(values(to_host(cache)), values(expected));
}

}  // namespace
}  // namespace witan
