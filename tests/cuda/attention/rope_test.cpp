#include "witan/kernels/attention/rope.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::CudaTest;

class CudaRope : public CudaTest {
 protected:
  void check(const Shape& shape, DType dtype, const Tensor& positions, const kernels::RopeArgs& args) {
    SCOPED_TRACE(cat(shape, ' ', dtype, " dims ", args.dims, args.interleaved ? " interleaved" : "",
                     args.inverse ? " inverse" : ""));
    const Tensor x = host.normal(shape, dtype, "x"), expected = host.poisoned(shape, dtype);
    const Shape rows{positions.elements(), args.dims};
    kernels::rope(host.stream, expected, host.poisoned(rows, accumulator(dtype)), x, positions, args);
    const Tensor y = poisoned(shape, dtype), x_gpu = to_gpu(x), positions_gpu = to_gpu(positions);
    kernels::rope(gpu(), y, poisoned(rows, accumulator(dtype)), x_gpu, positions_gpu, args);
    // Float32 sines are off by about 1e-7; in float64 the rounding of late positions' angles dominates. A bfloat16 may
    // be rounded to the other neighbour.
    const double atol = dtype == DType::f64 ? 5e-10 : 3e-6;
    const double rtol = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-6 : 8e-3;
    EXPECT_TRUE(agree(y, expected, atol, rtol));
  }
};

TEST_F(CudaRope, AgreesWithTheCpu) {
  const Tensor documents = host.tensor<int32_t>({2, 5}, {0, 1, 2, 3, 4, 0, 1, 0, 1, 2});
  const Tensor late = host.tensor<int32_t>({2, 1}, {100000, 7});  // beyond the number of tokens
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const bool interleaved : {false, true})
      for (const bool inverse : {false, true})
        // Odd head sizes, packs of 16 bytes, packs followed by copied channels, and copied channels that are not packs.
        for (const auto& [hd, dims] : {std::pair<int64_t, int64_t>{10, 6},
                                       {5, 4},
                                       {7, 2},
                                       {128, 128},
                                       {64, 32},
                                       {40, 16},
                                       {24, 24},
                                       {20, 16},
                                       {256, 256},
                                       {9, 0}})
          for (const Tensor& positions : {documents, late})
            check({2, positions.size(1), 3, hd}, dtype, positions, {10000, dims, interleaved, inverse});
}

TEST_F(CudaRope, ScaledFrequenciesAgreeWithTheCpu) {
  using Type = kernels::RopeScaling::Type;
  const Tensor positions = host.tensor<int32_t>({1, 4}, {0, 7, 900, 30000});
  for (const Type type : {Type::linear, Type::llama3, Type::yarn})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const bool inverse : {false, true}) {
        kernels::RopeArgs args{10000, 64, inverse, inverse};
        args.scaling.type = type, args.scaling.factor = 40, args.scaling.original_positions = 4096;
        args.scaling.magnitude = 1.2;
        check({1, 4, 3, 96}, dtype, positions, args);
      }
}

TEST_F(CudaRope, ManyTokensAndHeads) {
  std::vector<int32_t> at(4099);
  for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int32_t>(i);
  const Tensor positions = host.tensor<int32_t>({1, 4099}, at);
  for (const int64_t heads : {1, 4, 9})
    check({1, 4099, heads, 128}, DType::bf16, positions, {500000, 128, false, false});
}

TEST_F(CudaRope, AcceptsNoTokens) {
  const Tensor x = gpu().empty({0, 3, 2, 8}, DType::f32);
  kernels::rope(gpu(), gpu().empty_like(x), gpu().empty({0, 8}, DType::f32), x, gpu().empty({0, 3}, DType::i32),
                {10000, 8, false, false});
  gpu().wait();
}

}  // namespace
}  // namespace witan
