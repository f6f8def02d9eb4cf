// A fixture for tests of recurrent kernels: pairs of tensors on the CPU and on a GPU, rows of packed documents, and
// generation steps.
#pragma once

#include <vector>

#include "support/cuda_rank.h"
#include "witan/kernels/attention/kv_cache.h"

namespace witan::testing {

inline constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
// Documents of one token, of whole chunks, and of chunks and a rest.
inline const std::vector<int64_t> kDocuments = {3, 1, 64, 150, 65, 37};
inline constexpr int64_t kRowTokens = 320;

class RecurrentTwins : public CudaTest {
 protected:
  struct Pair {
    Tensor cpu, gpu;
  };
  Pair values_of(const Shape& shape, DType dtype, std::string_view name, double scale = 1) {
    const Tensor cpu = host.normal(shape, dtype, name, scale);
    return {cpu, to_gpu(cpu)};
  }
  Pair output(const Shape& shape, DType dtype) { return {host.poisoned(shape, dtype), poisoned(shape, dtype)}; }
  void expect_close(const Pair& pair, const char* what, double scale = 10) {
    const double allowed = scale * tolerance(pair.cpu.dtype());
    EXPECT_TRUE(agree(pair.gpu, pair.cpu, allowed, allowed)) << what << " " << pair.cpu.dtype() << pair.cpu.shape();
  }
  // kDocuments in a row, B times.
  Pair ids(int64_t B) {
    std::vector<int32_t> all;
    for (int64_t b = 0; b < B; ++b)
      for (size_t i = 0; i < kDocuments.size(); ++i)
        all.insert(all.end(), static_cast<size_t>(kDocuments[i]), static_cast<int32_t>(i));
    const Tensor cpu = host.tensor<int32_t>({B, kRowTokens}, all);
    return {cpu, to_gpu(cpu)};
  }
  kernels::CacheTokens on_gpu(const kernels::CacheTokens& tokens) {
    return {tokens.runs, to_gpu(tokens.rows), to_gpu(tokens.positions)};
  }
  kernels::CacheTokens tokens_of(const std::vector<kernels::CacheRun>& runs) {
    std::vector<int32_t> rows, positions;
    for (const kernels::CacheRun& run : runs)
      for (int64_t p = run.past; p < run.past + run.count; ++p) {
        rows.push_back(static_cast<int32_t>(run.row));
        positions.push_back(static_cast<int32_t>(p));
      }
    const auto T = static_cast<int64_t>(rows.size());
    return {runs, host.tensor<int32_t>({T}, rows), host.tensor<int32_t>({T}, positions)};
  }
};

}  // namespace witan::testing
