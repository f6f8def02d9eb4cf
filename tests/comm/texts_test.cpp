#include "witan/comm/texts.h"

#include <gtest/gtest.h>

#include "support/thread_world.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::Rank;
using testing::ThreadRank;

TEST(Texts, AreGatheredInRankOrder) {
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    EXPECT_EQ(gather_numbers(*group, rank.stream, 10 * rank.rank), (std::vector<int64_t>{0, 10, 20}));
  });
}

TEST(Texts, MayHaveAnyLength) {
  const auto text_of = [](int rank) {
    return std::string(static_cast<size_t>(rank) * 200'003, static_cast<char>('a' + rank));
  };
  on_ranks(4, [&](ThreadRank& rank) {
    const auto group = rank.everyone();
    const auto texts = gather_texts(*group, rank.stream, text_of(rank.rank));
    ASSERT_EQ(texts.size(), rank.rank == 0 ? 4U : 0U);
    for (size_t i = 0; i < texts.size(); ++i) EXPECT_TRUE(texts[i] == text_of(static_cast<int>(i)));
    for (int root = 0; root < 4; ++root)
      EXPECT_TRUE(broadcast_text(*group, rank.stream, text_of(rank.rank), root) == text_of(root));
  });
}

// They are sent during training, when little memory is free.
TEST(Texts, MayBeLongerThanTheArena) {
  const std::string text(size_t{5} << 20, 'x');
  on_ranks(2, [&](ThreadRank& rank) {
    const auto group = rank.everyone();
    Rank small(1, int64_t{1} << 20);
    const std::string own = text + std::to_string(rank.rank);
    const auto gathered = gather_texts(*group, small.stream, own);
    if (rank.rank == 0) {
      EXPECT_EQ(gathered.size(), 2u);
      EXPECT_TRUE(gathered[0] == text + "0" && gathered[1] == text + "1");
    }
    EXPECT_TRUE(broadcast_text(*group, small.stream, own, 1) == text + "1");
  });
}

}  // namespace
}  // namespace witan
