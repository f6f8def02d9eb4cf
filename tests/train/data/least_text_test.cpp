// Text is refused by size exactly if a byte-level tokenizer could not produce enough tokens.
#include "witan/train/data/least_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/base/error.h"
#include "witan/tokenizer/training/bpe_trainer.h"
#include "witan/train/data/run_data.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTooShort = "tokens at most; ";

// The error's message; empty if there is no error.
std::string refusal_by(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

class LeastText : public ::testing::Test {
 protected:
  LeastText() : config_(testing::small_config()) {
    config_.data.seq_length = 8;  // two samples have 18 tokens
    config_.data.bpe.vocab_size = 257;
    config_.train.runs_folder = (folder_ / "runs").string();
  }

  std::vector<Source> file(const std::string& name, const std::string& text) const {
    write_file_atomically(folder_ / name, text);
    return find_sources({folder_ / name}).files;
  }
  std::string refusal(const std::vector<Source>& files, const Tokenizer* tokenizer = nullptr) const {
    return refusal_by([&] { require_enough_text("my text", files, config_.data, tokenizer); });
  }
  Tokenizer tokenizer_that(const std::function<void(TokenizerSpec&)>& change) const {
    BpeTrainerConfig bytes;
    bytes.vocab_size = 257;
    TokenizerSpec spec = BpeTrainer(bytes).train().spec();
    change(spec);
    return Tokenizer(spec);
  }
  // Empty if a run that trains a tokenizer of bytes finds enough text; otherwise its message.
  std::string refusal_of_run(const std::string& run) {
    std::FILE* quiet = std::fopen("/dev/null", "w");
    const std::string why = refusal_by([&] {
      Progress progress(quiet, progress_options(quiet));
      prepare_run_data(config_, RunFolder(config_.train.runs_folder, run), progress);
    });
    std::fclose(quiet);
    return why;
  }

  test::TempFolder folder_;
  RunConfig config_;
};

TEST_F(LeastText, IsTheLengthOfTokensFromBytes) {
  EXPECT_EQ(least_tokens_of_splits(config_.data), 18);
  const auto enough = file("enough.txt", std::string(17, 'x')), too_few = file("few.txt", std::string(16, 'x'));
  EXPECT_EQ(refusal(enough), "") << "an end of text is a token too";
  EXPECT_EQ(refusal(too_few),
            "my text has 16 bytes, which are 17 tokens at most; with seq_length 8 a sample to train on and one for "
            "validation need 18: give more text, or choose a smaller seq_length");
  EXPECT_EQ(refusal({too_few[0], too_few[0]}), "") << "two files have 34 bytes";

  // The run itself with a token for each byte.
  config_.data.data = (folder_ / "enough.txt").string();
  EXPECT_EQ(refusal_of_run("enough"), "");
  config_.data.data = (folder_ / "few.txt").string();
  EXPECT_THAT(refusal_of_run("few"), HasSubstr("few.txt has 16 bytes, which are 17 tokens at most; "));
}

TEST_F(LeastText, EachPartOfAMixtureNeedsItsOwn) {
  file("few.txt", std::string(16, 'x'));
  file("more.txt", std::string(400, 'x'));
  config_.data.data = (folder_ / "more.txt").string() + "," + (folder_ / "few.txt").string();
  config_.data.data_weights = "1,1";
  EXPECT_THAT(refusal_of_run("mixed"), HasSubstr("few.txt has 16 bytes, which are 17 tokens at most; "));
}

TEST_F(LeastText, SizesOfRowsIncludeTheirKeys) {
  EXPECT_EQ(refusal(file("rows.jsonl", "{\"text\": \"xxxxx\"}\n")), "") << "18 bytes";
  EXPECT_THAT(refusal(file("few.jsonl", "{\"text\": \"xxxx\"}\n")), HasSubstr(kTooShort));
}

TEST_F(LeastText, UnknownSizesAreAccepted) {
  const auto few = file("few.txt", "x");
  EXPECT_NE(refusal(few), "");
  EXPECT_EQ(refusal(file("empty.txt", "")), "") << "empty files have their own error";
  std::vector<Source> zstd = few;
  write_file_atomically(folder_ / "few.txt", "\x28\xb5\x2f\xfd");
  EXPECT_EQ(refusal(zstd), "");
  write_file_atomically(folder_ / "few.txt", "\x1f\x8b");
  EXPECT_EQ(refusal(zstd), "");
  write_file_atomically(folder_ / "few.txt", "x");
  std::vector<Source> table = few;
  table[0].kind = SourceKind::parquet;
  EXPECT_EQ(refusal(table), "");
  config_.data.sft = true;
  EXPECT_EQ(refusal(few), "") << "conversations are packed";
}

TEST_F(LeastText, TokenizersThatLengthenTextAreNotJudged) {
  const auto few = file("few.txt", "x");
  const Tokenizer bytes = tokenizer_that([](TokenizerSpec&) {});
  EXPECT_NE(refusal(few, &bytes), "");
  const Tokenizer prefixed = tokenizer_that([](TokenizerSpec& spec) { spec.prefix_space = true; });
  EXPECT_EQ(refusal(few, &prefixed), "");
  const Tokenizer normalised =
      tokenizer_that([](TokenizerSpec& spec) { spec.normalizers.push_back({.kind = NormalizerStep::Kind::nfkd}); });
  EXPECT_EQ(refusal(few, &normalised), "");
}

TEST_F(LeastText, ReplacementsAreLongerThanInvalidBytes) {
  const auto latin1 = file("latin1.txt", std::string(6, '\xe9'));
  EXPECT_NE(refusal(latin1), "");
  config_.data.replace_invalid_utf8 = true;
  EXPECT_EQ(refusal(latin1), "") << "six replacements of three bytes";
}

TEST_F(LeastText, AValidationSetNeedsASample) {
  file("few.txt", std::string(7, 'x'));
  file("enough.txt", std::string(8, 'x'));
  const auto refusal_of = [&](const std::string& set) {
    config_.data.valid_data = set + "=" + (folder_ / set).string() + ".txt";
    return refusal_by([&] { require_enough_validation_text(config_.data, nullptr); });
  };
  EXPECT_EQ(refusal_of("enough"), "");
  EXPECT_THAT(refusal_of("few"), HasSubstr("valid_data: few: "));
  EXPECT_THAT(refusal_of("few"),
              HasSubstr("has 7 bytes, which are 8 tokens at most; with seq_length 8 a sample needs 9"));
  config_.data.data_packing = "best_fit";
  EXPECT_EQ(refusal_of("few"), "") << "the rest is padding";
}

}  // namespace
}  // namespace witan
