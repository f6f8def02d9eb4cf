#include "witan/data/batches/batch.h"

#include <gtest/gtest.h>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/samples/samples.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Ints = std::vector<int32_t>;
using Floats = std::vector<float>;

constexpr int32_t kEnd = 99;

// One row of documents: 1 2 end 3 end 4 | 5.
Samples row() {
  return {std::make_shared<const MemoryDataset>(std::vector<Ints>{{1, 2, kEnd, 3, kEnd, 4, 5}}),
          {.sequence_length = 6, .shuffle = false}};
}

TEST(Batch, ShiftsTargetsByOne) {
  const Samples samples(MemoryDataset::counting({9}), {.sequence_length = 4, .shuffle = false});
  const Batch batch = make_batch(samples, 0, 2, {});
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.sequence_length, 4);
  EXPECT_EQ(batch.tokens, (Ints{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(batch.targets, (Ints{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(batch.positions, (Ints{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(batch.sequence_ids, Ints(8, 0));
  EXPECT_EQ(batch.loss_mask, Floats(8, 1));
  EXPECT_EQ(batch.loss_tokens, 8);
}

TEST(Batch, ResetsAndMasksLikeMegatron) {
  const Batch plain = make_batch(row(), 0, 1, {.end_of_text = kEnd});
  EXPECT_EQ(plain.positions, (Ints{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(plain.loss_tokens, 6);

  const Batch positions = make_batch(row(), 0, 1, {.end_of_text = kEnd, .reset_position_ids = true});
  EXPECT_EQ(positions.positions, (Ints{0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(positions.sequence_ids, Ints(6, 0));

  const Batch attention = make_batch(row(), 0, 1, {.end_of_text = kEnd, .reset_attention_mask = true});
  EXPECT_EQ(attention.sequence_ids, (Ints{0, 0, 0, 1, 1, 2}));
  EXPECT_EQ(attention.positions, (Ints{0, 1, 2, 3, 4, 5}));

  const Batch masked = make_batch(row(), 0, 1, {.end_of_text = kEnd, .eod_mask_loss = true});
  EXPECT_EQ(masked.loss_mask, (Floats{1, 1, 0, 1, 0, 1}));
  EXPECT_EQ(masked.loss_tokens, 4);
}

TEST(Batch, PlacesAreTakenInOrder) {
  const Samples samples(MemoryDataset::counting({19}), {.sequence_length = 6, .shuffle = false});
  const Batch whole =
      make_batch(samples, 0, 2, {.end_of_text = 4, .reset_attention_mask = true, .eod_mask_loss = true});
  const Batch ends = take_places(whole, {{0, 1}, {4, 2}});
  EXPECT_EQ(ends.sequences, 2);
  EXPECT_EQ(ends.sequence_length, 3);
  EXPECT_EQ(ends.tokens, (Ints{0, 4, 5, 6, 10, 11}));
  EXPECT_EQ(ends.targets, (Ints{1, 5, 6, 7, 11, 12}));
  EXPECT_EQ(ends.positions, (Ints{0, 4, 5, 0, 4, 5}));
  EXPECT_EQ(ends.sequence_ids, (Ints{0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(ends.loss_mask, (Floats{1, 0, 1, 1, 1, 1}));
  EXPECT_EQ(ends.loss_tokens, 5);
  EXPECT_EQ(ends.loss_tokens + take_places(whole, {{1, 3}}).loss_tokens, whole.loss_tokens);
  EXPECT_EQ(take_places(whole, {{0, 6}}).tokens, whole.tokens);
  EXPECT_EQ(take_places(whole, {}).sequence_length, 0);
}

TEST(Batch, RefusesResetsWithoutAnEndOfText) {
  EXPECT_THROW(validate({.reset_position_ids = true}), ConfigError);
  EXPECT_THROW(validate({.reset_attention_mask = true}), ConfigError);
  EXPECT_THAT(message_of<ConfigError>([] { validate({.eod_mask_loss = true}); }), HasSubstr("eod_mask_loss"));
  validate({});
}

TEST(Batch, RefusesIdsOutsideTheVocabulary) {
  EXPECT_EQ(make_batch(row(), 0, 1, {.vocab_size = 100}).sequences, 1);
  EXPECT_THAT(message_of<DataError>([] { make_batch(row(), 0, 1, {.vocab_size = 99}); }),
              AllOf(HasSubstr("99"), HasSubstr("tokenizer")));
}

using Ids = std::vector<int32_t>;
using Mask = std::vector<float>;

// Two rows of five; the first holds two documents, which end after two tokens.
Batch two_rows() {
  Batch batch;
  batch.sequences = 2;
  batch.sequence_length = 5;
  batch.tokens = {10, 11, 12, 13, 14, 20, 21, 22, 23, 24};
  batch.targets = {11, 12, 13, 14, 15, 21, 22, 23, 24, 25};
  batch.positions = {0, 1, 0, 1, 2, 0, 1, 2, 3, 4};
  batch.sequence_ids = {0, 0, 1, 1, 1, 0, 0, 0, 0, 0};
  batch.loss_mask = {1, 0, 1, 1, 1, 1, 1, 1, 0, 1};
  batch.loss_tokens = 8;
  return batch;
}

TEST(LookAhead, EndsWithTheRowAndTheDocument) {
  const Batch one = look_ahead(two_rows(), 1);
  EXPECT_EQ(one.tokens, (Ids{11, 0, 13, 14, 0, 21, 22, 23, 24, 0}));
  EXPECT_EQ(one.targets, (Ids{12, 0, 14, 15, 0, 22, 23, 24, 25, 0}));
  EXPECT_EQ(one.positions, (Ids{1, 0, 1, 2, 0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(one.loss_mask, (Mask{0, 0, 1, 1, 0, 1, 1, 0, 1, 0}));
  EXPECT_EQ(one.sequence_ids, two_rows().sequence_ids);
  EXPECT_EQ(one.loss_tokens, 5);
  const Batch two = look_ahead(two_rows(), 2);
  EXPECT_EQ(two.tokens, (Ids{0, 0, 14, 0, 0, 22, 23, 24, 0, 0}));
  EXPECT_EQ(two.loss_mask, (Mask{0, 0, 1, 0, 0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(look_ahead(two_rows(), 7).loss_tokens, 0);
}

TEST(LookAhead, WorksOnMetaTensors) {
  Batch sizes;
  sizes.sequences = 2;
  sizes.sequence_length = 3;
  const Batch ahead = look_ahead(sizes, 1);
  EXPECT_EQ(ahead.sequences, 2);
  EXPECT_TRUE(ahead.tokens.empty());
}

}  // namespace
}  // namespace witan
