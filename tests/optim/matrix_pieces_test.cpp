#include "witan/optim/matrix_pieces.h"

#include <numeric>

#include "support/rank.h"
#include "witan/comm/threads/threads.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

// Element k of matrix i [4, 6] is 100 i + k. Every rank gathers all matrices, and those it owns: both must be the same,
// and pieces must return unchanged.
TEST(MatrixPieces, FormTheSameMatricesOnEveryRankAndOnOwners) {
  for (const bool columns_divided : {false, true}) {
    static constexpr int64_t kMatrices = 6, kRows = 4, kColumns = 6;
    static constexpr int kRanks = 2;
    ThreadWorld world(kRanks);
    world.run([&](int number) {
      Rank rank(1, int64_t{1} << 26);
      const auto group = world.group(number, {0, 1}, "tensor");
      const MatrixSize size =
          columns_divided ? MatrixSize{kRows, kColumns / kRanks} : MatrixSize{kRows / kRanks, kColumns};
      const int64_t down = columns_divided ? 0 : number * size.rows,
                    across = columns_divided ? number * size.columns : 0;
      const Tensor mine = rank.stream.empty({kMatrices, size.rows, size.columns}, DType::f64);
      for (int64_t i = 0; i < mine.elements(); ++i) {
        const int64_t row = i / size.columns % size.rows, column = i % size.columns;
        mine.data<double>()[i] =
            static_cast<double>(100 * (i / size.elements()) + (down + row) * kColumns + across + column);
      }
      const MatrixPieces pieces(group.get(), size, columns_divided);
      const auto whole = [](int64_t matrix) {
        std::vector<double> all(kRows * kColumns);
        std::iota(all.begin(), all.end(), static_cast<double>(100 * matrix));
        return all;
      };
      for (int64_t i = 0; i < kMatrices; ++i) {
        const Tensor gathered = pieces.gathered(rank.stream, mine.reshape({mine.elements()}), i);
        EXPECT_EQ(values(gathered), whole(i));
        EXPECT_EQ(values(pieces.piece(rank.stream, gathered)), values(mine.narrow(0, i, 1)));
      }
      const Tensor owned = pieces.to_owners(rank.stream, mine);
      EXPECT_EQ(owned.shape(), (Shape{kMatrices / kRanks, kRows, kColumns}));
      for (int64_t i = 0; i < owned.size(0); ++i)
        EXPECT_EQ(values(owned.narrow(0, i, 1)), whole(number * owned.size(0) + i));
      EXPECT_EQ(values(pieces.from_owners(rank.stream, owned)), values(mine));
    });
  }
}

}  // namespace
}  // namespace witan
