#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;
using testing::values;

TEST(Embedding, GradientsMatchDifferences) {
  Rank rank;
  const Tensor ids = rank.tensor<int32_t>({2, 3}, {3, 0, 3, 1, 3, 0});
  gradcheck(rank, "embedding",
            [&](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::embedding(tape, ids, in[0])}; },
            {rank.normal({5, 4}, DType::f64, "w")});
}

TEST(Embedding, ShapesFollowTheIds) {
  Rank rank;
  Tape tape(rank.stream);
  const Var w = tape.input(rank.normal({5, 4}, DType::bf16, "w"));
  EXPECT_EQ(ops::embedding(tape, rank.tensor<int32_t>({1, 2, 1}, {1, 2}), w).shape(), (Shape{1, 2, 1, 4}));
  EXPECT_EQ(ops::embedding(tape, rank.tensor<int32_t>({}, {1}), w).shape(), (Shape{4}));
}

TEST(Embedding, GradientIsZeroWithoutTokens) {
  Rank rank;
  Tape tape(rank.stream);
  const Var w = tape.input(rank.normal({3, 2}, DType::f32, "w"));
  tape.backward({{ops::embedding(tape, rank.stream.empty({0}, DType::i32), w), {}}});
  EXPECT_EQ(values(tape.gradient(w)), std::vector<double>(6, 0.0));
}

// The rows of a table of 10 are divided as unevenly as possible: the ranks' outputs sum to the whole one's, and each
// rank computes the gradient of its own rows.
TEST(Embedding, DividedTablesMatchTheWhole) {
  constexpr int64_t V = 10, D = 3;
  for (const std::vector<int64_t>& bounds : {std::vector<int64_t>{0, 5, 10}, {0, 7, 7, 10}, {0, 1, 4, 4, 10}}) {
    testing::on_ranks(static_cast<int>(bounds.size()) - 1, [&](testing::ThreadRank& rank) {
      const auto group = rank.everyone("tensor");
      const Tensor table = rank.normal({V, D}, DType::f64, "w"), dy = rank.normal({2, 6, D}, DType::f64, "dy");
      const Tensor ids = rank.tensor<int32_t>({2, 6}, {0, 9, 3, 3, 7, 1, 4, 6, 9, 0, 2, 5});
      const int64_t begin = bounds[static_cast<size_t>(rank.rank)],
                    rows = bounds[static_cast<size_t>(rank.rank) + 1] - begin;
      Tape tape(rank.stream);
      const Var whole = tape.input(table), mine = tape.input(table.narrow(0, begin, rows));
      const Var expected = ops::embedding(tape, ids, whole);
      const Var y = ops::redistribute(tape, ops::embedding(tape, ids, mine, {begin, V}), *group, Placement::partial(),
                                      Placement::replicate());
      EXPECT_EQ(values(y.value()), values(expected.value()));
      tape.backward({{expected, dy}, {y, dy}});
      EXPECT_EQ(values(tape.gradient(mine)), values(tape.gradient(whole).narrow(0, begin, rows)));
    });
  }
}

TEST(Embedding, ErrorsNameWrongInputs) {
  Rank rank;
  Tape tape(rank.stream);
  const Var w = tape.input(rank.normal({5, 4}, DType::f32, "w"));
  EXPECT_EQ(
      message_of<DataError>([&] {
        ops::embedding(tape, rank.tensor<int32_t>({3}, {4, 5, -1}), w);
      }),
      "embedding: id 5 at index 1 is not in the vocabulary of 5 entries: was the text encoded with another tokenizer?");
  EXPECT_THROW(ops::embedding(tape, rank.tensor<int32_t>({1}, {-1}), w), DataError);
  ops::embedding(tape, rank.tensor<int32_t>({3}, {4, 5, 8}), w, {4, 9});
  EXPECT_EQ(
      message_of<DataError>([&] {
        ops::embedding(tape, rank.tensor<int32_t>({3}, {4, 5, 9}), w, {4, 9});
      }),
      "embedding: id 9 at index 2 is not in the vocabulary of 9 entries: was the text encoded with another tokenizer?");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::embedding(tape, rank.tensor<int32_t>({1}, {0}), w, {5, 9});
            }),
            "embedding: rows [5, 10) are not within the vocabulary of 9 entries");
  ops::embedding(tape, rank.tensor<int32_t>({1}, {8}), w, {5, 9, 1});
  EXPECT_EQ(
      message_of<DataError>([&] {
        ops::embedding(tape, rank.tensor<int32_t>({1}, {9}), w, {5, 9, 1});
      }),
      "embedding: id 9 at index 0 is not in the vocabulary of 9 entries: was the text encoded with another tokenizer?");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::embedding(tape, rank.tensor<int64_t>({1}, {0}), w); }),
            "embedding: ids must be contiguous int32 of at most 4 dims, got int64 [1]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::embedding(tape, rank.tensor<int32_t>({1}, {0}), tape.input(rank.normal({5}, DType::f32, "w")));
            }),
            "embedding: w must be [V, D] and floating, got float32 [5]");
}

}  // namespace
}  // namespace witan
