#include "witan/cli/text_batches.h"

#include "cli/cli_support.h"
#include "support/message_of.h"
#include "witan/tokenizer/training/bpe_trainer.h"

namespace witan::test {
namespace {

class TextBatchesTest : public ::testing::Test {
 protected:
  TextBatchesTest() {
    BpeTrainerConfig config;
    config.vocab_size = 257;  // the bytes and an end of text
    tokenizer_.emplace(BpeTrainer(config).train());
    write_text(folder_ / "a.txt", "abc");
    write_text(folder_ / "b.txt", "de");
    options_.end_of_text = tokenizer_->end_of_text();
  }
  cli::TextBatches batches(int64_t length) const {
    return cli::batch_text(find_sources({folder_.path()}).files, {}, *tokenizer_, length, options_);
  }
  std::string text(const std::vector<int32_t>& ids) const { return tokenizer_->decode(ids); }

  TempFolder folder_;
  std::optional<Tokenizer> tokenizer_;
  BatchOptions options_;
};

TEST_F(TextBatchesTest, EveryTokenIsATargetOnce) {
  const auto all = batches(4);
  ASSERT_EQ(all.batches.size(), 2u);
  EXPECT_EQ(text(all.batches[0].tokens), "<|endoftext|>abc");
  EXPECT_EQ(text(all.batches[0].targets), "abc<|endoftext|>");
  EXPECT_EQ(text(all.batches[1].tokens), "<|endoftext|>de");
  EXPECT_EQ(text(all.batches[1].targets), "de<|endoftext|>");
  EXPECT_EQ(all.batches[1].sequence_length, 3);
  EXPECT_EQ(all.batches[1].loss_tokens, 3);
  EXPECT_EQ(all.bytes, 5);
}

TEST_F(TextBatchesTest, LengthsNeverChangeTheCount) {
  for (const int64_t length : {1, 2, 3, 5, 6, 7, 8, 100}) {
    const auto all = batches(length);
    std::string targets;
    for (const Batch& batch : all.batches) targets += text(batch.targets);
    EXPECT_EQ(targets, "abc<|endoftext|>de<|endoftext|>") << length;
    EXPECT_EQ(all.bytes, 5) << length;
  }
}

TEST_F(TextBatchesTest, EndsOfTextAreHandledAsInTheRun) {
  EXPECT_EQ(batches(7).batches[0].positions, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(batches(7).batches[0].sequence_ids, std::vector<int32_t>(7, 0));
  options_.reset_position_ids = options_.reset_attention_mask = options_.eod_mask_loss = true;
  const auto all = batches(7);
  EXPECT_EQ(all.batches[0].positions, (std::vector<int32_t>{0, 0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(all.batches[0].sequence_ids, (std::vector<int32_t>{0, 1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(all.batches[0].loss_mask, (std::vector<float>{0, 1, 1, 1, 0, 1, 1}));
  EXPECT_EQ(all.batches[0].loss_tokens, 5);
  EXPECT_EQ(all.bytes, 3);
}

TEST_F(TextBatchesTest, EmptyTextIsAnError) {
  const TempFolder empty;
  write_text(empty / "x.txt", "");
  EXPECT_NE(
      message_of<DataError>([&] { cli::batch_text(find_sources({empty.path()}).files, {}, *tokenizer_, 4, options_); }),
      "");
}

}  // namespace
}  // namespace witan::test
