#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/cuda_rank.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan {
namespace {

using testing::CudaTest;

class LikeliestTokensOnGpu : public CudaTest {};

// Rows in packs and not, one round per thread and several, ties, rows without a choice.
TEST_F(LikeliestTokensOnGpu, MatchTheCpu) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [columns, words] :
         {std::pair<int64_t, int64_t>{1, 1}, {7, 5}, {64, 64}, {1000, 997}, {50304, 50257}, {151936, 151936}}) {
      SCOPED_TRACE(cat(dtype, " [", columns, "], ", words, " words"));
      const Tensor logits = host.normal({6, columns}, dtype, "logits");
      dispatch_floating(dtype, [&]<class T>() {
        T* const row = logits.data<T>();
        std::fill_n(row + 2 * columns, columns, T(-kInf));
        std::fill_n(row + 3 * columns, columns, T(-1.0F));
        row[4 * columns + words - 1] = T(std::nanf(""));
        row[5 * columns + words / 2] = T(kInf);
        for (int64_t v = words; v < columns; ++v) row[v] = T(kInf);
      });
      const Tensor ids = host.tensor({6}, std::vector<int32_t>(6, -7)), on_gpu = to_gpu(ids);
      kernels::likeliest_tokens(host.stream, ids, logits, words);
      kernels::likeliest_tokens(gpu(), on_gpu, to_gpu(logits), words);
      const Tensor back = to_host(on_gpu);
      const auto *expected = ids.data<int32_t>(), *found = back.data<int32_t>();
      EXPECT_TRUE(std::equal(expected, expected + 6, found));
      EXPECT_EQ(expected[3], 0);
      EXPECT_EQ(expected[4], -1);
    }
}

}  // namespace
}  // namespace witan
