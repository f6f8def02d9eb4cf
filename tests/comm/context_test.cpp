#include "witan/comm/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "support/attention.h"
#include "support/message_of.h"
#include "support/processes.h"
#include "support/thread_peers.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"
#include "witan/kernels/common/blocks.h"

namespace witan {
namespace {

using kernels::PositionRuns;

TEST(Context, RanksHoldEachPositionOnce) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const int64_t S = 10L * 2 * ranks, tokens = S / ranks;
    std::set<int64_t> held;
    for (int rank = 0; rank < ranks; ++rank) {
      const PositionRuns positions = context_positions(S, ranks, rank);
      for (int64_t i = 0; i < tokens; ++i) {
        const int64_t position = positions.at(i);
        EXPECT_TRUE(held.insert(position).second) << position << " is held twice";
        EXPECT_TRUE(i == 0 || position > positions.at(i - 1)) << "positions increase";
      }
    }
    EXPECT_EQ(static_cast<int64_t>(held.size()), S);
    EXPECT_EQ(*held.rbegin(), S - 1);
  }
}

TEST(Context, AllPairsOfRanksHaveEqualWork) {
  constexpr int kRanks = 5;
  constexpr int64_t kChunk = 6, kTokens = 2 * kChunk, S = kTokens * kRanks;
  for (int mine = 0; mine < kRanks; ++mine)
    for (int theirs = 0; theirs < kRanks; ++theirs) {
      const PositionRuns queries = context_positions(S, kRanks, mine), keys = context_positions(S, kRanks, theirs);
      int64_t pairs = 0;
      for (int64_t i = 0; i < kTokens; ++i) pairs += keys.before(queries.at(i) + 1, kTokens);
      EXPECT_EQ(pairs, 2 * kChunk * kChunk + (mine == theirs ? kChunk : 0)) << mine << " and " << theirs;
    }
}

// Gathering parts restores every position of every sequence, and splitting again restores the parts.
TEST(Context, GathersPartsInSequenceOrder) {
  for (const int ranks : {2, 3, 4})
    testing::on_ranks(ranks, [&](testing::ThreadRank& rank) {
      const int64_t B = 3, S = 4L * ranks, own = S / ranks, I = 2;
      const auto group = rank.everyone("context");
      const PositionRuns positions = context_positions(S, ranks, rank.rank);
      std::vector<int32_t> part;
      for (int64_t b = 0; b < B; ++b)
        for (int64_t s = 0; s < own; ++s)
          for (int64_t i = 0; i < I; ++i) part.push_back(static_cast<int32_t>((b * S + positions.at(s)) * I + i));
      const Tensor held = rank.stream.empty({B, own, I}, DType::i32);
      rank.stream.write(held, part.data());
      const Tensor whole = gather_positions(rank.stream, held, *group);
      const auto found = whole.to_vector<int32_t>();
      for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], static_cast<int32_t>(i));
      EXPECT_EQ(whole.shape(), Shape({B, S, I}));
      EXPECT_EQ(own_positions(rank.stream, whole, *group).to_vector<int32_t>(), part);
    });
}

TEST(Context, OneRankAcceptsAnyLength) {
  for (const int64_t S : {0, 1, 7}) EXPECT_EQ(context_positions(S, 1, 0), PositionRuns{});
}

TEST(Context, RefusalsOfLengthsNameTheNearest) {
  const auto message = [](int64_t S) { return test::message_of<ConfigError>([&] { context_positions(S, 3, 1); }); };
  EXPECT_EQ(message(100),
            "a sequence of 100 tokens cannot be split into two equal chunks for each of 3 context-parallel ranks; the "
            "nearest length that can is 96 or 102");
  EXPECT_EQ(message(5),
            "a sequence of 5 tokens cannot be split into two equal chunks for each of 3 context-parallel ranks; the "
            "nearest length that can is 6");
}

using test::message_of;
using ::testing::HasSubstr;
using testing::heads_of;
using testing::on_ranks;
using testing::own_heads_of;
using testing::Rank;
using testing::share_of;
using testing::ThreadRank;
using testing::values;

struct Case {
  int n;
  int64_t B, S, P, G, w;  // query heads and key-value heads
};
const std::vector<Case> kCases = {{2, 2, 8, 4, 2, 5},  {2, 1, 4, 2, 1, 3},  {3, 2, 12, 3, 3, 4},
                                  {4, 1, 16, 8, 4, 2}, {4, 2, 16, 4, 2, 3}, {4, 3, 24, 4, 1, 1},
                                  {2, 0, 8, 2, 2, 4},  {2, 2, 0, 2, 2, 4},  {1, 2, 6, 3, 1, 2}};

// x of this rank's positions and all heads -> all positions of this rank's heads.
void expect_exchanged(Rank& rank, Group& group, const Case& c, DType dtype) {
  SCOPED_TRACE(cat(c.n, " ranks, P=", c.P, " G=", c.G, " ", dtype));
  const Tensor q = rank.normal({c.B, c.S, c.P, c.w}, dtype, "q"), k = rank.normal({c.B, c.S, c.G, c.w + 1}, dtype, "k"),
               v = rank.normal({c.B, c.S, c.G, 2 * c.w}, dtype, "v");
  std::vector<Tensor> parts;
  for (const Tensor& x : {q, k, v}) parts.push_back(share_of(rank, x, c.n, group.rank()));
  const std::vector<Tensor> wholes = exchange_to_heads(rank.stream, parts, group);
  const Tensor all[] = {q, k, v};
  for (size_t i = 0; i < 3; ++i) {
    const Tensor expected = own_heads_of(rank, all[i], c.n, group.rank());
    EXPECT_EQ(wholes[i].shape(), expected.shape());
    EXPECT_EQ(values(wholes[i]), values(expected)) << i;
  }
  const std::vector<Tensor> back = exchange_to_positions(rank.stream, wholes, group);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t P = all[i].size(2), Q = wholes[i].size(2);
    ASSERT_EQ(back[i].shape(), parts[i].shape().with(2, c.n * Q));
    for (int r = 0; r < c.n; ++r)
      EXPECT_EQ(values(heads_of(rank, back[i], r * Q, Q)), values(heads_of(rank, parts[i], r * P / c.n, Q))) << i;
  }
}

// Joins the heads of tensors [B, S, heads, w] side by side, [B, S, sum of heads w].
Tensor beside_each_other(Rank& rank, const std::vector<Tensor>& xs) {
  int64_t channels = 0, first = 0;
  for (const Tensor& x : xs) channels += x.size(2) * x.size(3);
  const Tensor joined = rank.stream.empty({xs[0].size(0), xs[0].size(1), channels}, xs[0].dtype());
  const int64_t rows = joined.size(0) * joined.size(1);
  for (const Tensor& x : xs) {
    const int64_t own = x.size(2) * x.size(3);
    if (rows > 0)
      kernels::copy_columns(rank.stream, joined.reshape({rows, channels}), x.reshape({rows, own}), {first, 0, own});
    first += own;
  }
  return joined;
}

// One exchange of heads side by side gives what exchanges of separate tensors give, side by side, in both directions.
void expect_sections_exchanged(Rank& rank, Group& group, const Case& c, DType dtype) {
  SCOPED_TRACE(cat(c.n, " ranks, P=", c.P, " G=", c.G, " ", dtype));
  const HeadSections sections = {{c.G, c.w + 1}, {c.P, c.w}, {c.G, 2 * c.w}};
  std::vector<Tensor> parts;
  for (const HeadSection& of : sections)
    parts.push_back(
        share_of(rank, rank.normal({c.B, c.S, of.heads, of.width}, dtype, cat("x", of.width)), c.n, group.rank()));
  const std::vector<Tensor> wholes = exchange_to_heads(rank.stream, parts, group);
  const Tensor whole = exchange_to_heads(rank.stream, beside_each_other(rank, parts), sections, group);
  const Tensor expected = beside_each_other(rank, wholes);
  ASSERT_EQ(whole.shape(), expected.shape());
  EXPECT_EQ(values(whole), values(expected));
  const Tensor back = exchange_to_positions(rank.stream, whole, sections, group),
               separate = beside_each_other(rank, exchange_to_positions(rank.stream, wholes, group));
  ASSERT_EQ(back.shape(), separate.shape());
  EXPECT_EQ(values(back), values(separate));
}

TEST(HeadExchange, MovesSectionsOfOneTensor) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f32, DType::bf16})
      on_ranks(c.n, [&](ThreadRank& rank) {
        const auto group = rank.everyone("context");
        expect_sections_exchanged(rank, *group, c, dtype);
        testing::PeeredGroup peered(*group);
        expect_sections_exchanged(rank, peered, c, dtype);
      });
}

TEST(HeadExchange, RefusesSectionsOfOtherChannels) {
  Rank rank;
  MetaGroup group(2, 1, "context");
  const Tensor x = rank.stream.empty({1, 4, 10}, DType::f32);
  EXPECT_EQ(message_of<ShapeError>([&] {
              exchange_to_heads(rank.stream, x, {{2, 3}, {2, 1}}, group);
            }),
            "exchange_to_heads: sections of 8 channels in x [1, 4, 10]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              exchange_to_positions(rank.stream, x, {{4, 3}, {1, 1}}, group);
            }),
            "exchange_to_positions: sections of 7 channels in x [1, 4, 10]");
  EXPECT_THAT(message_of<ShapeError>([&] {
                exchange_to_heads(rank.stream, x, {{3, 2}, {4, 1}}, group);
              }),
              HasSubstr("heads that its 2 ranks divide, or that divide them"));
}

TEST(HeadExchange, GivesEachRankAllPositionsOfItsHeads) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
      on_ranks(c.n, [&](ThreadRank& rank) {
        const auto group = rank.everyone("context");
        expect_exchanged(rank, *group, c, dtype);
      });
}

// Rows are stored directly at their destination, and are counted like sent bytes.
TEST(HeadExchange, PeerMemoryGivesTheSameResult) {
  for (const Case& c : kCases)
    on_ranks(c.n, [&](ThreadRank& rank) {
      const auto through = rank.everyone("context"), packed = rank.everyone("packed");
      testing::PeeredGroup peered(*through);
      expect_exchanged(rank, peered, c, DType::bf16);
      expect_exchanged(rank, *packed, c, DType::bf16);
      EXPECT_EQ(peered.sent(), packed->sent());
    });
}

TEST(HeadExchange, ProcessesMatchThreads) {
  const Case c{3, 2, 12, 3, 3, 4};
  const auto ended = testing::on_processes(c.n, [&](testing::ProcessRank& rank) {
    const auto group = rank.everyone("context");
    expect_exchanged(rank, *group, c, DType::bf16);
    return std::string(HasFailure() ? "other elements" : "all elements");
  });
  for (const testing::Ended& one : ended) EXPECT_EQ(one.said, "all elements");
}

// A plan counts the bytes that ranks send, and needs the same memory with and without peers.
TEST(HeadExchange, PlansMatchItsBytesAndMemory) {
  for (const auto& [n, B, S, P, G, w] : kCases) {
    if (n == 1) continue;
    std::vector<int64_t> bytes;
    for (const PeerAccess access : {PeerAccess::none, PeerAccess::wanted}) {
      ThreadPool pool(1);
      Stream meta({Device::Kind::meta}, Arena::meta(), pool);
      MetaGroup group(n, 1, "context", access);
      const auto part = [&](int64_t heads) { return meta.empty({B, S / n, heads, w}, DType::bf16); };
      const std::vector<Tensor> wholes = exchange_to_heads(meta, {part(P), part(G), part(G)}, group);
      const double heads = static_cast<double>(std::max<int64_t>(P / n, 1) + 2 * std::max<int64_t>(G / n, 1));
      const double piece = static_cast<double>(B * S / n * w) * heads * 2;
      EXPECT_EQ(group.sent().at("all_to_all_equal"), piece * (n - 1));
      EXPECT_EQ(wholes[1].shape(), Shape({B, S, std::max<int64_t>(G / n, 1), w}));
      exchange_to_positions(meta, wholes, group);
      EXPECT_EQ(group.sent().at("all_to_all_equal"), 2 * piece * (n - 1));
      bytes.push_back(meta.arena().high_water());
    }
    EXPECT_EQ(bytes[0], bytes[1]);
  }
}

TEST(HeadExchange, SectionsSendTheirBytesInOneMessage) {
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  MetaGroup group(4, 1, "context");
  const HeadSections sections = {{8, 3}, {2, 5}};
  const Tensor whole = exchange_to_heads(meta, meta.empty({2, 6, 34}, DType::bf16), sections, group);
  EXPECT_EQ(whole.shape(), Shape({2, 24, 2 * 3 + 5}));
  EXPECT_EQ(group.sent().at("all_to_all_equal"), 2 * 6 * 11 * 2 * 3);
  EXPECT_EQ(exchange_to_positions(meta, whole, sections, group).shape(), Shape({2, 6, 4 * 11}));
  EXPECT_EQ(group.sent().at("all_to_all_equal"), 2 * 2 * 6 * 11 * 2 * 3);
}

TEST(HeadExchange, RefusesIndivisibleHeads) {
  Rank rank;
  MetaGroup group(4, 1, "context");
  const auto message = [&](const Shape& shape) {
    return message_of<ShapeError>(
        [&] { exchange_to_heads(rank.stream, {rank.stream.empty(shape, DType::f32)}, group); });
  };
  EXPECT_THAT(message({1, 4, 6, 2}), HasSubstr("axis context"));
  EXPECT_THAT(message({1, 4, 3, 2}), HasSubstr("heads that its 4 ranks divide, or that divide them"));
  EXPECT_THAT(message({1, 3, 4, 2}), HasSubstr("two equal chunks"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                exchange_to_positions(rank.stream, {rank.stream.empty({1, 12, 4, 2}, DType::f32)}, group);
              }),
              HasSubstr("two equal chunks for each of its 4 ranks"));
}

}  // namespace
}  // namespace witan
