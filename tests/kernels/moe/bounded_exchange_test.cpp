#include "support/message_of.h"
#include "support/rank.h"
#include "witan/kernels/moe/dispatch.h"

namespace witan {
namespace {

using testing::Rank;
using Integers = std::vector<int64_t>;

// Five assignments for three ranks, the fourth of which is dropped: two for rank 0, none for rank 1.
TEST(SpreadToParts, PutsEachRanksRowsFirstInItsPart) {
  Rank rank;
  for (const int64_t part_rows : {2, 3}) {
    const Tensor slot = rank.tensor<int64_t>({5}, {2, 0, 1, -1, 3}),
                 parts = rank.tensor<int64_t>({3 * part_rows}, Integers(static_cast<size_t>(3 * part_rows), -7));
    kernels::spread_to_parts(rank.stream, slot, parts, rank.tensor<int64_t>({5}, {1, 2, 0, 4, -1}),
                             rank.tensor<int64_t>({3}, {2, 0, 2}));
    const int64_t third = 2 * part_rows;
    EXPECT_EQ(slot.to_vector<int64_t>(), (Integers{third, 0, 1, -1, third + 1}));
    EXPECT_EQ(parts.to_vector<int64_t>(),
              (part_rows == 2 ? Integers{1, 2, -1, -1, 0, 4} : Integers{1, 2, -1, -1, -1, -1, 0, 4, -1}));
  }
}

TEST(SpreadToParts, RefusesMoreRowsThanAPartHolds) {
  Rank rank;
  const Tensor slot = rank.tensor<int64_t>({3}, {0, 1, 2}), parts = rank.stream.empty({4}, DType::i64);
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              kernels::spread_to_parts(rank.stream, slot, parts, slot, rank.tensor<int64_t>({2}, {0, 3}));
            }),
            "spread_to_parts: 3 rows for rank 1, whose part holds 2");
}

// Two ranks' rows for two local experts: 2 and 1 for expert 0, none and 3 for expert 1.
TEST(FindInParts, FindsWhereEachRowArrived) {
  Rank rank;
  const RowGroups groups{rank.tensor<int64_t>({2}, {0, 2}), rank.tensor<int64_t>({2}, {2, 4}),
                         rank.tensor<int64_t>({2, 2}, {0, 2, 2, 3}), rank.tensor<int64_t>({2, 2}, {2, 1, 0, 3})};
  const Tensor arrival = rank.tensor<int64_t>({8}, Integers(8, -7));
  kernels::find_in_parts(rank.stream, arrival, groups, 4);
  EXPECT_EQ(arrival.to_vector<int64_t>(), (Integers{0, 1, 2, 4, 5, 6, -7, -7})) << "by expert, then rank";
}

}  // namespace
}  // namespace witan
