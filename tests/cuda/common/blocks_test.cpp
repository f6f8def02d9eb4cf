#include "witan/kernels/common/blocks.h"

#include "support/cuda_rank.h"
#include "witan/kernels/gemm/gemm.h"

namespace witan {
namespace {

using testing::CudaTest;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f64};
// [A, N, I], whose blocks are whole packs, words or neither
const Shape kShapes[] = {{0, 2, 8}, {1, 1, 1}, {5, 3, 7}, {4, 3, 6}, {300, 4, 64}};

using Blocks = CudaTest;

TEST_F(Blocks, AreSwapped) {
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Tensor x = host.normal(shape, dtype, "x"), expected = host.poisoned({shape[1], shape[0], shape[2]}, dtype);
      const Tensor y = poisoned(expected.shape(), dtype);
      kernels::swap_blocks(host.stream, expected, x);
      kernels::swap_blocks(gpu(), y, to_gpu(x));
      EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << shape;
    }
}

TEST_F(Blocks, PartsAreTakenAndPlaced) {
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes)
      for (int64_t part = 0; part < shape[1]; ++part) {
        const Tensor x = host.normal(shape, dtype, "x"), taken = host.poisoned({shape[0], shape[2]}, dtype);
        const Tensor y = poisoned(taken.shape(), dtype), back = poisoned(shape, dtype),
                     placed = host.poisoned(shape, dtype);
        kernels::take_part(host.stream, taken, x, part);
        kernels::take_part(gpu(), y, to_gpu(x), part);
        EXPECT_TRUE(agree(y, taken, 0, 0)) << dtype << shape << part;
        kernels::place_part(host.stream, placed, taken, part);
        kernels::place_part(gpu(), back, y, part);
        EXPECT_TRUE(agree(back, placed, 0, 0)) << dtype << shape << part;
      }
}

TEST_F(Blocks, ColumnsAreCopiedAndOthersStay) {
  for (const DType dtype : kDTypes)
    for (const auto& [A, M, N] : {std::array<int64_t, 3>{0, 2, 2}, {1, 1, 1}, {5, 7, 9}, {300, 70, 33}})
      for (const int64_t count : {int64_t{0}, int64_t{1}, std::min(M, N)}) {
        const Tensor x = host.normal({A, M}, dtype, "x"), y = host.normal({A, N}, dtype, "y"), on_gpu = to_gpu(y);
        const kernels::Columns columns{N - count, M - count, count};
        kernels::copy_columns(host.stream, y, x, columns);
        kernels::copy_columns(gpu(), on_gpu, to_gpu(x), columns);
        EXPECT_TRUE(agree(on_gpu, y, 0, 0)) << dtype << A << count;
      }
}

TEST_F(Blocks, LastRowsBecomeZero) {
  for (const DType dtype : kDTypes)
    for (const auto& [R, D, counts] : {std::tuple<int64_t, int64_t, std::vector<int64_t>>{0, 4, {0}},
                                       {9, 7, {0, 0}},
                                       {9, 7, {2, 0, 3}},
                                       {1000, 64, {100, 399}},
                                       {5, 8, {2, 3}}}) {
      const Tensor y = host.normal({R, D}, dtype, "y"), on_gpu = to_gpu(y),
                   of = host.tensor<int64_t>({static_cast<int64_t>(counts.size())}, counts);
      kernels::zero_last_rows(host.stream, y, of);
      kernels::zero_last_rows(gpu(), on_gpu, to_gpu(of));
      EXPECT_TRUE(agree(on_gpu, y, 0, 0)) << dtype << R;
    }
}

TEST_F(Blocks, ARowIsRepeated) {
  for (const DType dtype : kDTypes)
    for (const auto& [T, N] : {std::pair<int64_t, int64_t>{0, 4}, {1, 1}, {5, 37}, {300, 264}}) {
      const Tensor row = host.normal({N}, dtype, "row"), expected = host.poisoned({T, N}, dtype),
                   y = poisoned({T, N}, dtype);
      kernels::repeat_row(host.stream, expected, row);
      kernels::repeat_row(gpu(), y, to_gpu(row));
      EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << T;
    }
}

}  // namespace
}  // namespace witan
