#include "witan/kernels/common/block_sums.h"

#include "support/cuda_rank.h"
#include "support/optimizer.h"
#include "witan/kernels/common/device_table.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::values;

class BlockSumsOnGpu : public CudaTest {};

TEST_F(BlockSumsOnGpu, MatchAPlainLoop) {
  for (const Shape& shape : {Shape{3, 16, 128}, {2, 17, 129}, {1, 1, 1}, {2, 70, 300}, {0, 32, 64}, {2, 0, 5}})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(cat(shape, " ", dtype));
      const Tensor x = host.normal(shape, dtype, "x"), sums = poisoned(kernels::block_sums_shape(shape), DType::f64);
      testing::put_zeros(x);
      kernels::block_square_sums(gpu(), sums, to_gpu(x));
      EXPECT_TRUE(testing::close_block_sums(to_host(sums), x, 1e-12));
    }
}

// Many stacks, some of which have no experts, or fewer blocks than rows; rows between them must not change.
TEST_F(BlockSumsOnGpu, WriteTheRowsOfManyStacks) {
  std::vector<kernels::AddBlocksItem> cpu, on_gpu;
  int64_t rows = 0;
  for (int64_t i = 0; i < 70; ++i) {
    const Tensor blocks = host.normal({i % 6, 1 + i * 13 % 101, 2}, DType::f64, std::to_string(i));
    cpu.push_back({blocks, 1 + i % 7, rows});
    on_gpu.push_back({to_gpu(blocks), 1 + i % 7, rows});
    rows += blocks.size(0) * (1 + i % 7) + i % 2;
  }
  const Tensor expected = host.stream.zeros({rows, 2}, DType::f64), sums = gpu().zeros({rows, 2}, DType::f64);
  kernels::DeviceTable table(gpu(), std::ssize(cpu) * kernels::kAddBlocksColumns, MemoryTag::workspace);
  kernels::add_blocks_all(host.stream, expected, cpu, {});
  kernels::add_blocks_all(gpu(), sums, on_gpu, table.holding(gpu(), kernels::add_blocks_table(on_gpu)));
  EXPECT_TRUE(testing::close(values(to_host(sums)), values(expected), 1e-11, 1e-12));
}

}  // namespace
}  // namespace witan
