#include "witan/ops/embedding.h"

#include "support/gradcheck.h"
#include "support/message_of.h"

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

TEST(Embedding, NoTokensGiveAGradientOfZero) {
  Rank rank;
  Tape tape(rank.stream);
  const Var w = tape.input(rank.normal({3, 2}, DType::f32, "w"));
  tape.backward({{ops::embedding(tape, rank.stream.empty({0}, DType::i32), w), {}}});
  EXPECT_EQ(values(tape.gradient(w)), std::vector<double>(6, 0.0));
}

TEST(Embedding, WrongInputsAreNamed) {
  Rank rank;
  Tape tape(rank.stream);
  const Var w = tape.input(rank.normal({5, 4}, DType::f32, "w"));
  EXPECT_EQ(
      message_of<DataError>([&] {
        ops::embedding(tape, rank.tensor<int32_t>({3}, {4, 5, -1}), w);
      }),
      "embedding: id 5 at index 1 is not in the vocabulary of 5 entries: was the text encoded with another tokenizer?");
  EXPECT_THROW(ops::embedding(tape, rank.tensor<int32_t>({1}, {-1}), w), DataError);
  EXPECT_EQ(message_of<ShapeError>([&] { ops::embedding(tape, rank.tensor<int64_t>({1}, {0}), w); }),
            "embedding: ids must be contiguous int32 of at most 4 dims, got int64 [1]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::embedding(tape, rank.tensor<int32_t>({1}, {0}), tape.input(rank.normal({5}, DType::f32, "w")));
            }),
            "embedding: w must be [V, D] and floating, got float32 [5]");
}

}  // namespace
}  // namespace witan
