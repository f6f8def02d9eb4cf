#include "witan/kernels/grouped/block_sparse.h"

#include <algorithm>
#include <cstring>

#include "support/rank.h"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan {
namespace {

using kernels::Transpose;
using testing::Rank;
using testing::values;

struct Case {
  int64_t capacity, K, N;
  std::vector<int64_t> begin, count;
};
// Experts without rows, with whole blocks, with one row more and one less; gaps, groups out of order, odd widths, no
// rows.
const std::vector<Case> kBlockCases = {
    {700, 33, 17, {500, 0, 130, 130, 400}, {127, 128, 0, 257, 1}},
    {128, 64, 40, {0}, {128}},
    {300, 7, 1, {0, 0, 0, 0}, {0, 0, 300, 0}},
    {8, 5, 3, {0, 0}, {0, 0}},
    {0, 5, 3, {0, 0}, {0, 0}},
};

RowGroups groups_of(Rank& rank, const Case& c) {
  const int64_t E = std::ssize(c.count);
  return {rank.tensor<int64_t>({E}, c.begin), rank.tensor<int64_t>({E}, c.count)};
}

kernels::BlockTopology topology_of(Rank& rank, const Case& c) {
  const int64_t E = std::ssize(c.count);
  kernels::BlockTopology topology{rank.stream.empty({kernels::most_block_rows(c.capacity, E), 3}, DType::i32),
                                  rank.stream.empty({E + 1}, DType::i32), groups_of(rank, c)};
  kernels::block_topology(rank.stream, topology);
  return topology;
}

TEST(BlockSparse, TheTopologyHasTheBlockRowsOfEachExpert) {
  Rank rank;
  const auto topology = topology_of(rank, kBlockCases[0]);
  EXPECT_EQ(topology.first.to_vector<int32_t>(), (std::vector<int32_t>{0, 1, 2, 2, 5, 6}));
  const auto blocks = topology.blocks.to_vector<int32_t>();
  const std::vector<int32_t> expected = {0, 500, 127, 1, 0, 128, 3, 130, 128, 3, 258, 128, 3, 386, 1, 4, 400, 1};
  ASSERT_GE(blocks.size(), expected.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), blocks.begin()));
  EXPECT_TRUE(std::all_of(blocks.begin() + std::ssize(expected), blocks.end(), [](int32_t b) { return b == -1; }));
}

// The capacity for block rows covers the most uneven groups: each expert may need a block for a single row.
TEST(BlockSparse, CapacityCoversAnyGroups) {
  EXPECT_EQ(kernels::most_block_rows(0, 4), 3);
  EXPECT_EQ(kernels::most_block_rows(4, 4), 4);
  EXPECT_EQ(kernels::most_block_rows(132, 4), 5);
  EXPECT_EQ(kernels::most_block_rows(128, 1), 1);
}

// Rows outside the groups must keep their poison.
TEST(BlockSparse, ProductsHaveTheBitsOfGroupedGemm) {
  for (const Case& c : kBlockCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype, ", ", threads, " threads"));
        Rank rank(threads);
        const auto topology = topology_of(rank, c);
        const Tensor x = rank.normal({c.capacity, c.K}, dtype, "x"), dy = rank.normal({c.capacity, c.N}, dtype, "dy");
        const Tensor w = rank.normal({std::ssize(c.count), c.N, c.K}, dtype, "w");
        const auto expect_bits = [](const Tensor& a, const Tensor& b) {
          ASSERT_EQ(a.bytes(), b.bytes());
          EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0);
        };
        const Tensor y = rank.poisoned(dy.shape(), dtype), y_grouped = rank.poisoned(dy.shape(), dtype);
        kernels::block_rows_product(rank.stream, y, x, topology, w, Transpose::yes);
        kernels::grouped_gemm_forward(rank.stream, y_grouped, x, topology.groups, w);
        expect_bits(y, y_grouped);
        const Tensor dx = rank.poisoned(x.shape(), dtype), dx_grouped = rank.poisoned(x.shape(), dtype);
        kernels::block_rows_product(rank.stream, dx, dy, topology, w, Transpose::no);
        kernels::grouped_gemm_backward_input(rank.stream, dx_grouped, dy, topology.groups, w);
        expect_bits(dx, dx_grouped);
        for (const DType wide : {dtype, accumulator(dtype)}) {
          const Tensor dw = rank.poisoned(w.shape(), wide), dw_grouped = rank.poisoned(w.shape(), wide);
          for (const Write write : {Write::overwrite, Write::accumulate}) {
            kernels::block_columns_product(rank.stream, dw, write, dy, x, topology);
            kernels::grouped_gemm_backward_weight(rank.stream, {dw_grouped, write}, dy, x, topology.groups);
            expect_bits(dw, dw_grouped);
          }
        }
      }
}

TEST(BlockSparse, CostsFollowTheExpectedRows) {
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  const Tensor x = meta.empty({100, 16}, DType::f32), y = meta.empty({100, 32}, DType::f32);
  const Tensor w = meta.empty({4, 32, 16}, DType::f32);
  kernels::BlockTopology topology{meta.empty({kernels::most_block_rows(100, 4), 3}, DType::i32),
                                  meta.empty({5}, DType::i32),
                                  {meta.empty({4}, DType::i64), meta.empty({4}, DType::i64), {}, {}, 60}};
  kernels::block_topology(meta, topology);
  kernels::block_rows_product(meta, y, x, topology, w, Transpose::yes);
  kernels::block_columns_product(meta, w, Write::accumulate, y, x, topology);
  const auto& costs = meta.costs().at("other");
  const double flops = 2.0 * 60 * 16 * 32, rows = 4.0 * 60 * (16 + 32), weights = 4.0 * 4 * 32 * 16;
  const double map = static_cast<double>(topology.blocks.bytes() + topology.first.bytes());
  EXPECT_EQ(costs.at("block_rows_product").flops, flops);
  EXPECT_EQ(costs.at("block_rows_product").bytes, rows + weights + map);
  EXPECT_EQ(costs.at("block_columns_product").flops, flops);
  EXPECT_EQ(costs.at("block_columns_product").bytes, rows + 2 * weights + map);
}

}  // namespace
}  // namespace witan
