#include "witan/generate/input_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GenerationConfigFiles : public ::testing::Test {
 protected:
  GenerationConfig read(const std::string& text) {
    write_file_atomically(file_, text);
    return read_generation_config(file_);
  }
  test::TempFolder folder_;
  fs::path file_ = folder_ / "generation_config.json";
};

// Qwen3's file.
TEST_F(GenerationConfigFiles, SetSamplingOptions) {
  const GenerationConfig config = read(
      R"({"bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643], "pad_token_id": 151643,
          "temperature": 0.6, "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0"})");
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.top_p, 0.95);
  EXPECT_EQ(config.repetition_penalty, std::nullopt);
  EXPECT_EQ(config.max_new_tokens, std::nullopt);
  EXPECT_THAT(config.stop_tokens, ElementsAre(151645, 151643));
}

TEST_F(GenerationConfigFiles, AcceptASingleEndToken) {
  EXPECT_THAT(read(R"({"eos_token_id": 2, "max_new_tokens": 2048})").stop_tokens, ElementsAre(2));
  EXPECT_EQ(read(R"({"eos_token_id": 2, "max_new_tokens": 2048})").max_new_tokens, 2048);
}

TEST_F(GenerationConfigFiles, WithoutSamplingSetTemperatureZero) {
  EXPECT_EQ(read(R"({"do_sample": false, "temperature": 0.6})").temperature, 0);
}

TEST_F(GenerationConfigFiles, LeaveMissingOptionsUnset) {
  const GenerationConfig config = read(R"({"temperature": null, "eos_token_id": null})");
  EXPECT_EQ(config.temperature, std::nullopt);
  EXPECT_THAT(config.stop_tokens, IsEmpty());
  EXPECT_EQ(read_generation_config(folder_ / "none.json").top_p, std::nullopt);
}

// As written by transformers for unset options, and with values.
TEST_F(GenerationConfigFiles, ReportUnsupportedOptions) {
  EXPECT_EQ(read(R"({"min_p": 0.05})").min_p, .05);
  EXPECT_THAT(read(R"({"typical_p": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0, "min_length": 0, "top_h": null,
                       "bad_words_ids": null, "use_cache": true})")
                  .unsupported,
              IsEmpty());
  EXPECT_THAT(read(R"({"typical_p": 0.9, "num_beams": 4, "suppress_tokens": [7, 8]})").unsupported,
              ElementsAre("typical_p = 0.9", "num_beams = 4", "suppress_tokens = [7,8]"));
  EXPECT_THAT(read(R"({"do_sample": false, "typical_p": 0.9, "num_beams": 4})").unsupported,
              ElementsAre("num_beams = 4"));
}

TEST_F(GenerationConfigFiles, ErrorsNameTheDamage) {
  using test::message_of;
  EXPECT_THAT(message_of<CorruptionError>([&] { read("[1]"); }), HasSubstr("an object is expected, found array"));
  EXPECT_THAT(message_of<CorruptionError>([&] { read(R"({"top_p": "much"})"); }),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("top_p = \"much\", but it must be a number")));
  EXPECT_THAT(message_of<CorruptionError>([&] { read(R"({"top_k": 1.5})"); }), HasSubstr("top_k = 1.5"));
  EXPECT_THAT(message_of<CorruptionError>([&] { read(R"({"eos_token_id": [1, -1]})"); }),
              HasSubstr("eos_token_id = -1"));
  EXPECT_THAT(message_of<CorruptionError>([&] { read(R"({"temp)"); }), HasSubstr("byte 7"));
}

}  // namespace

namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PromptFile : public ::testing::Test {
 protected:
  std::vector<std::string> read(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return read_prompt_file(folder_ / name);
  }
  test::TempFolder folder_;
};

TEST_F(PromptFile, HasAPromptPerNonEmptyLine) {
  EXPECT_THAT(read("p.txt", "hello\n\nfoo bar"), ElementsAre("hello", "foo bar"));
  EXPECT_THAT(read("p.txt", "hello\r\n\r\n \r\n"), ElementsAre("hello", " "));
  EXPECT_THAT(read("p.txt", "\xEF\xBB\xBFhello\n"), ElementsAre("hello")) << "a byte order mark is not text";
  EXPECT_THAT(read("p.txt", "\"quoted\"\n"), ElementsAre("\"quoted\"")) << "text files are not parsed as JSON";
}

// A line of a text file cannot express the empty prompt, which starts a new text.
TEST_F(PromptFile, AcceptsEmptyPromptsInJson) {
  EXPECT_THAT(read("p.jsonl", "\"a\\nb\"\n\n{\"prompt\": \"\", \"more\": 1}\n\"\"\n"), ElementsAre("a\nb", "", ""));
}

TEST_F(PromptFile, RefusesFilesWithoutPrompts) {
  EXPECT_THAT(message_of<DataError>([&] { read("p.txt", "\n\n"); }), HasSubstr("has no prompts"));
  EXPECT_THAT(message_of<DataError>([&] { read("p.jsonl", "\"a\"\n\n{\"text\": \"b\"}\n"); }),
              HasSubstr("p.jsonl:3: a string or an object with a string \"prompt\" is expected"));
  EXPECT_THROW(read_prompt_file(folder_ / "none.txt"), IoError);
}

}  // namespace

}  // namespace witan
