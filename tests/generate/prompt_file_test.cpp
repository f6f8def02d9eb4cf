#include "witan/generate/prompt_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
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

TEST_F(PromptFile, HasAPromptInEachLineThatIsNotEmpty) {
  EXPECT_THAT(read("p.txt", "hello\n\nfoo bar"), ElementsAre("hello", "foo bar"));
  EXPECT_THAT(read("p.txt", "hello\r\n\r\n \r\n"), ElementsAre("hello", " "));
  EXPECT_THAT(read("p.txt", "\xEF\xBB\xBFhello\n"), ElementsAre("hello")) << "a byte order mark is no text";
  EXPECT_THAT(read("p.txt", "\"quoted\"\n"), ElementsAre("\"quoted\"")) << "of text nothing is JSON";
}

// What a line of text cannot say: the empty prompt, which begins a new text.
TEST_F(PromptFile, OfJsonMayHaveTheEmptyPrompt) {
  EXPECT_THAT(read("p.jsonl", "\"a\\nb\"\n\n{\"prompt\": \"\", \"more\": 1}\n\"\"\n"), ElementsAre("a\nb", "", ""));
}

TEST_F(PromptFile, WithoutPromptsOrWithOthersIsRefused) {
  EXPECT_THAT(message_of<DataError>([&] { read("p.txt", "\n\n"); }), HasSubstr("has no prompts"));
  EXPECT_THAT(message_of<DataError>([&] { read("p.jsonl", "\"a\"\n\n{\"text\": \"b\"}\n"); }),
              HasSubstr("p.jsonl:3: a string or an object with a string \"prompt\" is expected"));
  EXPECT_THROW(read_prompt_file(folder_ / "none.txt"), IoError);
}

}  // namespace
}  // namespace witan
