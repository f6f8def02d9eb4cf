#include "witan/data/batches/ahead.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

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

TEST(LookAhead, EndsWithTheRowAndWithTheDocument) {
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

TEST(LookAhead, OfSizesGivesSizes) {
  Batch sizes;
  sizes.sequences = 2;
  sizes.sequence_length = 3;
  const Batch ahead = look_ahead(sizes, 1);
  EXPECT_EQ(ahead.sequences, 2);
  EXPECT_TRUE(ahead.tokens.empty());
}

}  // namespace
}  // namespace witan
