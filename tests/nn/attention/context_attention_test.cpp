#include <gmock/gmock.h>

#include <limits>

#include "nn/attention/attention_support.h"
#include "support/attention.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"
#include "witan/nn/attention/attention.h"
#include "witan/nn/attention/grouped_query.h"

namespace witan {
namespace {

using testing::close;
using testing::on_ranks;
using testing::Rank;
using testing::share_of;
using testing::ThreadRank;
using testing::values;

MultiHeadSpec spec_of(int64_t heads, int64_t groups) {
  MultiHeadSpec spec;
  spec.num_attention_heads = heads;
  spec.num_query_groups = groups;
  return spec;
}

TEST(ContextAttention, RanksDivideHeadsAndDivideGroupsOrShareThem) {
  struct Case {
    int64_t heads, groups, tensor, context;
    bool divide;
  };
  for (const Case& c :
       {Case{8, 8, 1, 2, true}, Case{8, 2, 1, 4, true}, Case{8, 1, 1, 8, true}, Case{8, 2, 1, 16, false},
        Case{6, 3, 1, 2, false}, Case{6, 3, 1, 3, true}, Case{6, 6, 1, 4, false}, Case{8, 4, 2, 4, true},
        Case{8, 2, 4, 2, true}, Case{8, 2, 4, 4, false}, Case{12, 4, 1, 6, false}}) {
    const MultiHeadSpec spec = spec_of(c.heads, c.groups);
    SCOPED_TRACE(cat(c.heads, " heads, ", c.groups, " groups, tensor ", c.tensor, ", context ", c.context));
    EXPECT_EQ(ranks_divide_heads(spec, c.tensor, c.context), c.divide);
    EXPECT_EQ(exchanges_heads(ContextExchange::automatic, spec, c.tensor, c.context), c.divide);
    EXPECT_FALSE(exchanges_heads(ContextExchange::ring, spec, c.tensor, c.context));
    EXPECT_FALSE(exchanges_heads(ContextExchange::automatic, spec, c.tensor, 1));
  }
}

TEST(ContextAttention, RefusesHeadsThatDoNotDivide) {
  MetaGroup group(3, 0, "context");
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                ContextAttention({&group, ContextExchange::heads}, spec_of(4, 2), 1);
              }),
              ::testing::HasSubstr("set it to p2p"));
}

// A layer with everything that depends on heads and positions, whole or divided in either way.
struct Found {
  Tensor y, dx, max_logits;
  std::vector<Tensor> gradients;
};

Found run(Rank& rank, const ContextAxis& context, const Tensor& x, const Tensor& dy, Positions where, bool promised) {
  AttentionConfig config;
  config.num_attention_heads = 4;
  config.num_query_groups = 2;
  config.softmax_type = "learnable";
  config.qk_layernorm = true;
  config.window_size = "20,0";
  GroupedQueryAttention attention(testing::attention_builder(rank, DType::f64),
                                  std::get<MultiHeadSpec>(config.layers(16, 1).front()), 16, Bias::none, context);
  testing::bind_gradients(rank.stream, attention);
  const Tensor max_logits = rank.stream.empty({4}, DType::f64);
  std::ranges::fill(max_logits.span<double>(), -std::numeric_limits<double>::infinity());
  attention.use_max_logits(max_logits);
  where.hints.one_sequence_per_row = promised;
  Tape tape(rank.stream);
  const Var in = tape.input(x);
  const Var y = attention.forward(tape, in, where);
  tape.backward({{y, dy}});
  Found found{y.value(), tape.gradient(in), max_logits, {}};
  for (Parameter* parameter : attention.parameters()) found.gradients.push_back(parameter->gradient());
  return found;
}

TEST(ContextAttention, BothKindsMatchTheWhole) {
  constexpr int64_t B = 2, S = 32, D = 16;
  for (const int n : {2, 4})
    for (const bool documents : {false, true})
      for (const ContextExchange way : {ContextExchange::ring, ContextExchange::heads})
        on_ranks(n, [&](ThreadRank& rank) {
          const auto group = rank.everyone("context");
          const auto mine = [&](const Tensor& x) { return share_of(rank, x, n, rank.rank); };
          const Tensor x = rank.normal({B, S, D}, DType::f64, "x"), dy = rank.normal({B, S, D}, DType::f64, "dy");
          Positions whole = testing::positions_of(rank, B, S);
          std::vector<int32_t> ids(static_cast<size_t>(B * S));
          for (size_t i = 0; i < ids.size(); ++i) ids[i] = i % S > 11 ? 1 : 0;
          if (documents) whole.sequence_ids = rank.tensor<int32_t>({B, S}, ids);
          const Positions own{mine(whole.positions), mine(whole.sequence_ids)};
          const Found expected = run(rank, {}, x, dy, whole, !documents),
                      got = run(rank, {group.get(), way}, mine(x), mine(dy), own, !documents);
          EXPECT_TRUE(close(got.y, mine(expected.y), 1e-12, 1e-12));
          EXPECT_TRUE(close(got.dx, mine(expected.dx), 1e-12, 1e-12));
          group->all_reduce(rank.stream, got.max_logits, Reduce::max);
          EXPECT_TRUE(close(got.max_logits, expected.max_logits, 1e-12, 1e-12));
          for (size_t i = 0; i < got.gradients.size(); ++i) {
            group->all_reduce(rank.stream, got.gradients[i]);
            EXPECT_TRUE(close(got.gradients[i], expected.gradients[i], 1e-11, 1e-11)) << "parameter " << i;
          }
          EXPECT_EQ(group->sent().contains("send"), way == ContextExchange::ring);
        });
}

TEST(ContextAttention, IdsCoverWholeSequences) {
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    std::vector<int32_t> all(2 * 12);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i / 5);
    const Tensor whole = rank.tensor<int32_t>({2, 12}, all);
    const Tensor found = gather_sequence_ids(rank.stream, share_of(rank, whole, 3, rank.rank), *group);
    EXPECT_EQ(found.shape(), whole.shape());
    EXPECT_EQ(found.to_vector<int32_t>(), all);
  });
}

}  // namespace
}  // namespace witan
