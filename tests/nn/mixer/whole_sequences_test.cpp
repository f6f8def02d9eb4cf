#include "witan/nn/mixer/whole_sequences.h"

#include <gtest/gtest.h>

#include "nn/attention/attention_support.h"
#include "support/attention.h"
#include "support/module.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::Rank;
using testing::share_of;
using testing::ThreadRank;
using testing::values;

TEST(WholeSequences, RanksDivideHeadsAndDivideGroupsOrShareThem) {
  struct Case {
    int64_t heads, groups, tensor, context;
    bool divide;
  };
  for (const Case& c :
       {Case{8, 8, 1, 2, true}, Case{8, 2, 1, 4, true}, Case{8, 1, 1, 8, true}, Case{8, 2, 1, 16, false},
        Case{6, 3, 1, 2, false}, Case{6, 3, 1, 3, true}, Case{6, 6, 1, 4, false}, Case{8, 4, 2, 4, true},
        Case{8, 2, 2, 2, true}, Case{8, 2, 2, 8, false}, Case{12, 4, 1, 6, false}}) {
    SCOPED_TRACE(cat(c.heads, " heads, ", c.groups, " groups, tensor ", c.tensor, ", context ", c.context));
    const ExchangedHeads grouped{"heads", {"heads", c.heads}, {"groups", c.groups}};
    EXPECT_EQ(ranks_divide(grouped, c.tensor, c.context), c.divide);
    EXPECT_EQ(refusal_of_heads(grouped, c.tensor, c.context).empty(), c.divide);
  }
}

TEST(WholeSequences, OneRankExchangesNothing) {
  Rank rank;
  const WholeSequences whole{ContextAxis()};
  EXPECT_EQ(whole.own(6), 6);
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({2, 4, 6}, DType::f32, "x"));
  EXPECT_EQ(whole.gather(tape, x, {{2, 3}}).value().raw(), x.value().raw());
  EXPECT_EQ(whole.gather(tape, {x}).front().value().raw(), x.value().raw());
  EXPECT_EQ(whole.scatter(tape, x, 2).value().raw(), x.value().raw());
  Positions where = testing::positions_of(rank, 2, 4);
  where.sequence_ids = rank.tensor<int32_t>({2, 4}, {0, 0, 1, 1, 0, 1, 2, 3});
  EXPECT_EQ(whole.sequence_ids(rank.stream, where).raw(), where.sequence_ids.raw());
  where.hints.one_sequence_per_row = true;
  EXPECT_FALSE(whole.sequence_ids(rank.stream, where).defined());
}

TEST(WholeSequences, HeadsGoToTheirRankAndBack) {
  on_ranks(4, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    const WholeSequences whole{ContextAxis(group.get())};
    EXPECT_EQ(whole.own(8), 2);
    EXPECT_EQ(whole.own(2), 1);
    const Tensor all = rank.normal({1, 16, 8 * 3}, DType::f32, "x");
    Tape tape(rank.stream);
    const Var x = tape.input(share_of(rank, all, 4, rank.rank)), mine = whole.gather(tape, x, {{8, 3}});
    const auto expected = values(all), got = values(mine.value());
    for (size_t s = 0; s < 16; ++s)
      for (size_t i = 0; i < 6; ++i)
        EXPECT_EQ(got[s * 6 + i], expected[s * 24 + static_cast<size_t>(rank.rank) * 6 + i]);
    EXPECT_EQ(values(whole.scatter(tape, mine, 2).value()), values(x.value()));
    const Tensor numbers = rank.normal({1, 16, 4}, DType::f32, "n");
    const Var own = tape.input(share_of(rank, numbers, 4, rank.rank));
    const std::vector<Var> both = whole.gather(tape, {own, own});
    ASSERT_EQ(both[1].shape(), Shape({1, 16, 1}));
    for (size_t s = 0; s < 16; ++s)
      EXPECT_EQ(values(both[1].value())[s], values(numbers)[s * 4 + static_cast<size_t>(rank.rank)]);
  });
}

// Rows of two heads: four ranks have those of one head in pairs, two ranks one each.
TEST(WholeSequences, RanksReadTheirOwnRowsOfParameters) {
  for (const int n : {2, 4})
    on_ranks(n, [n](ThreadRank& rank) {
      const auto group = rank.everyone("context");
      Linear rows(testing::attention_builder(rank, DType::f32), 5, 6, 0.1, Bias::none);
      testing::bind_gradients(rank.stream, rows);
      Tape tape(rank.stream);
      const WholeSequences whole{ContextAxis(group.get())};
      const Var own = whole.own_rows(tape, rows.weight(), 2);
      const int head = rank.rank * 2 / n;
      EXPECT_EQ(values(own.value()), values(rows.weight().value().narrow(0, 3 * head, 3)));
      tape.backward({{own, {}}});
      const auto gradient = values(rows.weight().gradient());
      for (size_t i = 0; i < 30; ++i) EXPECT_EQ(gradient[i], i / 15 == static_cast<size_t>(head) ? 1 : 0) << i;
    });
}

TEST(WholeSequences, IdsAreThoseOfAllTokens) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    const WholeSequences whole{ContextAxis(group.get())};
    const std::vector<int32_t> all = {0, 0, 0, 1, 1, 2, 2, 2};
    const Tensor ids = rank.tensor<int32_t>({1, 8}, all);
    Positions where;
    EXPECT_FALSE(whole.sequence_ids(rank.stream, where).defined());
    where.sequence_ids = share_of(rank, ids, 2, rank.rank);
    EXPECT_EQ(whole.sequence_ids(rank.stream, where).to_vector<int32_t>(), all);
    where.whole_ids = ids;
    EXPECT_EQ(whole.sequence_ids(rank.stream, where).raw(), ids.raw());
    where.hints.one_sequence_per_row = true;
    EXPECT_FALSE(whole.sequence_ids(rank.stream, where).defined());
  });
}

}  // namespace
}  // namespace witan
