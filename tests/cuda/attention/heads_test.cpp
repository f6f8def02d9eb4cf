#include "witan/kernels/attention/heads.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using HeadsOnGpu = testing::CudaTest;

struct Case {
  int64_t tokens, queries, groups, hd, dims;
  bool interleaved;
  int64_t hd_v = hd;
};

// Includes more pairs than one launch has frequencies for.
TEST_F(HeadsOnGpu, ScaledFrequenciesAgreeWithTheCpu) {
  const Tensor positions = host.tensor<int32_t>({4}, {0, 7, 900, 30000});
  for (const int64_t dims : {64, 600}) {
    kernels::RopeArgs args{1e4, dims, false, false};
    args.scaling.type = kernels::RopeScaling::Type::yarn, args.scaling.factor = 40;
    args.scaling.original_positions = 4096, args.scaling.magnitude = 1.2;
    const Tensor table = host.stream.empty({4, dims}, DType::f64), table_gpu = poisoned({4, dims}, DType::f64);
    kernels::rotary_table(host.stream, table, positions, args);
    kernels::rotary_table(gpu(), table_gpu, to_gpu(positions), args);
    EXPECT_TRUE(agree(table_gpu, table, 1e-9, 1e-9));
  }
}

TEST_F(HeadsOnGpu, SplitAndMergeAgreeWithTheCpu) {
  for (const Case& c : {Case{33, 4, 1, 128, 128, false}, Case{7, 4, 2, 64, 32, true}, Case{5, 3, 3, 6, 4, false},
                        Case{5, 2, 1, 10, 6, true}, Case{9, 2, 2, 16, 0, false}, Case{0, 2, 1, 8, 8, false},
                        Case{33, 4, 1, 192, 64, false, 128}, Case{9, 4, 2, 32, 32, true, 5},
                        Case{7, 3, 1, 7, 6, true, 9}, Case{7, 3, 1, 7, 6, false, 4}})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      const kernels::RopeArgs args{1e4, c.dims, c.interleaved, false};
      std::vector<int32_t> where;
      for (int64_t t = 0; t < c.tokens; ++t) where.push_back(static_cast<int32_t>(t * 37 % 2048));
      const Tensor positions = host.tensor<int32_t>({c.tokens}, where);
      Tensor table, table_gpu;
      if (c.dims > 0) {
        table = host.stream.empty({c.tokens, c.dims}, accumulator(dtype));
        table_gpu = poisoned(table.shape(), table.dtype());
        kernels::rotary_table(host.stream, table, positions, args);
        kernels::rotary_table(gpu(), table_gpu, to_gpu(positions), args);
        EXPECT_TRUE(agree(table_gpu, table, testing::CudaTest::tolerance(DType::f64) * 1e3, 1e-6));
      }
      const int64_t row = (c.queries + c.groups) * c.hd + c.groups * c.hd_v;
      const Tensor packed = host.normal({c.tokens, row}, dtype, "packed");
      const auto heads_on = [&](const auto& make) {
        return kernels::Heads{make(Shape{c.tokens, c.queries, c.hd}), make(Shape{c.tokens, c.groups, c.hd}),
                              make(Shape{c.tokens, c.groups, c.hd_v})};
      };
      const auto on_cpu = heads_on([&](const Shape& shape) { return host.stream.empty(shape, dtype); });
      const auto on_gpu = heads_on([&](const Shape& shape) { return poisoned(shape, dtype); });
      const Tensor angles = to_gpu(table);
      kernels::split_heads(host.stream, on_cpu, packed, table, args);
      kernels::split_heads(gpu(), on_gpu, to_gpu(packed), angles, args);
      const double rounding = size_of(dtype) == 2 ? 8e-3 : 1e-6;
      EXPECT_TRUE(agree(on_gpu.q, on_cpu.q, rounding, rounding)) << c.hd << " " << dtype;
      EXPECT_TRUE(agree(on_gpu.k, on_cpu.k, rounding, rounding));
      EXPECT_TRUE(agree(on_gpu.v, on_cpu.v, 0, 0));
      const Tensor back = host.stream.empty(packed.shape(), dtype), back_gpu = poisoned(packed.shape(), dtype);
      kernels::merge_heads(host.stream, back, on_cpu, table, args);
      kernels::merge_heads(gpu(), back_gpu, {to_gpu(on_cpu.q), to_gpu(on_cpu.k), to_gpu(on_cpu.v)}, angles, args);
      EXPECT_TRUE(agree(back_gpu, back, rounding, rounding));
    }
}

}  // namespace
}  // namespace witan
