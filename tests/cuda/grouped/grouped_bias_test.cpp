#include "support/cuda_rank.h"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan {
namespace {

struct Case {
  DType dtype;
  int64_t rows, N, first, M;
};

class GroupedBiasOnGpu : public testing::CudaTest {
 protected:
  void check(const Case& in, bool weighted, Write write) {
    SCOPED_TRACE(
        cat(in.dtype, " [", in.rows, ", ", in.N, "], ", in.M, " columns from ", in.first, weighted ? " weighted" : ""));
    // Out of order, one of them empty, with rows between them that belong to no group.
    const int64_t third = in.rows / 3;
    const Tensor begin = host.tensor<int64_t>({4}, {2 * third, 0, third, third}),
                 count = host.tensor<int64_t>({4}, {std::max<int64_t>(third - 1, 0), third, 0, third / 2});
    const RowGroups groups{begin, count}, gpu_groups{to_gpu(begin), to_gpu(count)};
    const DType wide = accumulator(in.dtype);
    const Tensor y = host.normal({in.rows, in.N}, in.dtype, "y"), dy = host.normal({in.rows, in.N}, in.dtype, "dy"),
                 bias = host.normal({4, in.M}, in.dtype, "bias"), db = host.normal({4, in.M}, wide, "db"),
                 ds = host.normal({in.rows}, wide, "ds"), s = weighted ? host.normal({in.rows}, wide, "s") : Tensor();
    const Tensor y_gpu = to_gpu(y), db_gpu = to_gpu(db), ds_gpu = to_gpu(ds), s_gpu = to_gpu(s), dy_gpu = to_gpu(dy),
                 bias_gpu = to_gpu(bias);
    kernels::grouped_bias_forward(host.stream, y, groups, bias, s, in.first);
    kernels::grouped_bias_backward(host.stream, db, write, dy, groups, s, in.first);
    kernels::grouped_bias_backward_scale(host.stream, ds, dy, groups, bias, in.first);
    kernels::grouped_bias_forward(gpu(), y_gpu, gpu_groups, bias_gpu, s_gpu, in.first);
    kernels::grouped_bias_backward(gpu(), db_gpu, write, dy_gpu, gpu_groups, s_gpu, in.first);
    kernels::grouped_bias_backward_scale(gpu(), ds_gpu, dy_gpu, gpu_groups, bias_gpu, in.first);
    EXPECT_TRUE(agree(y_gpu, y, tolerance(in.dtype), tolerance(in.dtype)));
    const double of_sums = 100 * tolerance(wide);
    EXPECT_TRUE(agree(db_gpu, db, of_sums, of_sums));
    EXPECT_TRUE(agree(ds_gpu, ds, of_sums, of_sums));
  }
};

TEST_F(GroupedBiasOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [rows, N, first, M] : std::vector<std::array<int64_t, 4>>{
             {0, 8, 0, 8}, {10, 37, 5, 7}, {33, 264, 0, 264}, {1000, 512, 256, 256}, {900, 130, 65, 65}})
      for (const bool weighted : {false, true})
        for (const Write write : {Write::overwrite, Write::accumulate})
          check({dtype, rows, N, first, M}, weighted, write);
}

TEST_F(GroupedBiasOnGpu, RepeatsToTheBit) {
  const Tensor begin = to_gpu(host.tensor<int64_t>({2}, {0, 700})),
               count = to_gpu(host.tensor<int64_t>({2}, {700, 300})),
               dy = to_gpu(host.normal({1000, 300}, DType::bf16, "dy"));
  const auto run = [&] {
    const Tensor db = poisoned({2, 300}, DType::f32);
    kernels::grouped_bias_backward(gpu(), db, Write::overwrite, dy, {begin, count}, {}, 0);
    return testing::values(to_host(db));
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace witan
