#include "witan/train/data/run_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "data/data_support.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

class TrainedTokenizer : public ::testing::Test {
 protected:
  TrainedTokenizer() {
    config_.vocab_size = 270;
    write("the king asked his council of experts about ships and corn, and about the corn again. ");
  }
  void write(const std::string& text) { put(folder_ / "text/a.txt", text); }
  // The resulting tokenizer.json.
  std::string train() {
    char* said = nullptr;
    size_t size = 0;
    std::FILE* out = ::open_memstream(&said, &size);
    {
      Progress progress(out, {});
      trained_tokenizer(path_, config_, find_sources({folder_ / "text"}).files, options_, progress);
    }
    std::fclose(out);
    said_ = std::string(said, size);
    std::free(said);
    return read_file(path_);
  }
  bool reused() const { return said_.find("(trained before)") != std::string::npos; }

  TempFolder folder_;
  fs::path path_ = folder_ / "out/tokenizer.json";
  BpeTrainerConfig config_;
  CorpusOptions options_;
  std::string said_;
};

TEST_F(TrainedTokenizer, IsTrainedOnce) {
  const std::string first = train();
  EXPECT_FALSE(reused());
  EXPECT_EQ(train(), first);
  EXPECT_TRUE(reused()) << said_;
}

TEST_F(TrainedTokenizer, IsRetrainedForOtherTextOrOptions) {
  const std::string first = train();
  config_.vocab_size = 280;
  const std::string larger = train();
  EXPECT_NE(larger, first);
  EXPECT_THAT(said_, HasSubstr("trained anew: " + path_.string()));
  config_.pattern = "gpt2";
  train();
  EXPECT_FALSE(reused());
  config_ = {};
  config_.vocab_size = 270;
  train();
  const auto other = [this](auto& option, auto value) {
    const auto before = std::exchange(option, value);
    train();
    EXPECT_FALSE(reused());
    option = before;
    train();
  };
  other(options_.json_key, "content");
  other(options_.document_bytes, options_.document_bytes / 2);
  other(options_.row_bytes, options_.row_bytes / 2);
  other(options_.bad_row_share, 0.5);
  other(options_.replace_invalid_utf8, !options_.replace_invalid_utf8);
  train();
  ASSERT_TRUE(reused()) << said_;
  write("other words of another text, other words of another text");
  EXPECT_NE(train(), first);
  EXPECT_FALSE(reused());
}

// The files of a process that ended at each point: the record loses its hash before the tokenizer changes.
TEST_F(TrainedTokenizer, UnfinishedTrainingIsIgnored) {
  const std::string good = train();
  const fs::path record = tokenizer_record(path_);
  EXPECT_EQ(record, folder_ / "out/tokenizer.record.json");
  const std::string recorded = read_file(record);
  for (const std::string& left : {std::string(), std::string("{\"format\""), recorded}) {
    put(path_, good + " ");  // from another start
    fs::remove(record);
    if (!left.empty()) put(record, left);
    EXPECT_EQ(train(), good) << left;
    EXPECT_FALSE(reused()) << left;
    EXPECT_EQ(read_file(record), recorded);
  }
  fs::remove(path_);
  EXPECT_EQ(train(), good) << "a record without a tokenizer";
}

}  // namespace
}  // namespace witan
