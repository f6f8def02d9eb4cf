#include "witan/kernels/common/block_sums.h"

#include <cmath>
#include <numeric>

#include "support/optimizer.h"

namespace witan {
namespace {

using testing::close_block_sums;
using testing::put_zeros;
using testing::Rank;
using testing::values;

const std::vector<Shape> kStacks = {{3, 16, 128}, {2, 17, 129}, {1, 1, 1},   {2, 70, 300},
                                    {1, 5, 1000}, {4, 15, 127}, {0, 32, 64}, {2, 0, 5}};

TEST(BlockSums, AreSumsOfSquaresAndCountsOfZeros) {
  for (const Shape& shape : kStacks)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(cat(shape, " ", dtype));
      std::vector<double> of_one_thread;
      for (const int threads : {1, 3}) {
        Rank rank(threads);
        const Tensor x = rank.normal(shape, dtype, "x");
        put_zeros(x);
        const Tensor sums = rank.poisoned(kernels::block_sums_shape(shape), DType::f64);
        kernels::block_square_sums(rank.stream, sums, x);
        EXPECT_TRUE(close_block_sums(sums, x, 1e-13));
        if (threads == 1)
          of_one_thread = values(sums);
        else
          EXPECT_EQ(values(sums), of_one_thread);
      }
    }
}

TEST(BlockSums, NonFiniteElementsReachTheirBlock) {
  Rank rank;
  const Tensor x = rank.normal({1, 20, 200}, DType::bf16, "x");
  x.data<bf16>()[19 * 200 + 3] = bf16(std::nanf(""));
  x.data<bf16>()[150] = bf16(INFINITY);
  const Tensor sums = rank.poisoned({1, 4, 2}, DType::f64);
  kernels::block_square_sums(rank.stream, sums, x);
  const std::vector<double> found = values(sums);
  EXPECT_TRUE(std::isfinite(found[0]) && std::isinf(found[2]) && std::isnan(found[4]) && std::isfinite(found[6]));
}

// Sums 7 blocks of an expert into 3 rows, and 2 blocks into 4 rows, some of which get none; other rows are unchanged.
TEST(BlockSums, AddUpToRowsOfEveryExpert) {
  Rank rank;
  const Tensor seven = rank.normal({2, 7, 2}, DType::f64, "seven"), two = rank.normal({1, 2, 2}, DType::f64, "two");
  const Tensor none = rank.normal({0, 5, 2}, DType::f64, "none"), sums = rank.poisoned({12, 2}, DType::f64);
  const std::vector<kernels::AddBlocksItem> items = {{seven, 3, 1}, {none, 2, 7}, {two, 4, 8}};
  kernels::add_blocks_all(rank.stream, sums, items, {});
  const std::vector<double> found = values(sums), of_seven = values(seven), of_two = values(two);
  const auto sum = [](const std::vector<double>& of, size_t begin, size_t end, size_t part) {
    double total = 0;
    for (size_t b = begin; b < end; ++b) total += of[2 * b + part];
    return total;
  };
  for (size_t part = 0; part < 2; ++part) {
    for (size_t e = 0; e < 2; ++e) {
      EXPECT_EQ(found[2 * (1 + 3 * e) + part], sum(of_seven, 7 * e, 7 * e + 2, part));
      EXPECT_EQ(found[2 * (2 + 3 * e) + part], sum(of_seven, 7 * e + 2, 7 * e + 4, part));
      EXPECT_EQ(found[2 * (3 + 3 * e) + part], sum(of_seven, 7 * e + 4, 7 * e + 7, part));
    }
    for (const size_t row : {size_t{0}, size_t{7}}) EXPECT_TRUE(std::isnan(found[2 * row + part]));
    EXPECT_EQ(found[16 + part], 0);
    EXPECT_EQ(found[18 + part], of_two[part]);
    EXPECT_EQ(found[20 + part], 0);
    EXPECT_EQ(found[22 + part], of_two[2 + part]);
  }
}

TEST(BlockSums, CostsCountTheBytesRead) {
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  const Tensor x = meta.empty({4, 32, 256}, DType::bf16);
  const Tensor sums = meta.empty(kernels::block_sums_shape(x.shape()), DType::f64),
               rows = meta.empty({4, 2}, DType::f64);
  kernels::block_square_sums(meta, sums, x);
  kernels::add_blocks_all(meta, rows, std::vector<kernels::AddBlocksItem>{{sums, 1, 0}}, {});
  const auto& costs = meta.costs().at("other");
  EXPECT_EQ(costs.at("block_square_sums").bytes, 4 * 32 * 256 * 2 + 4 * 4 * 16);
  EXPECT_EQ(costs.at("add_blocks_all").bytes, 4 * 4 * 16 + 4 * 16);
}

}  // namespace
}  // namespace witan
