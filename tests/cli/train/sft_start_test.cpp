// Failed starts of fine-tuning: the files that remain under the run's name, and the next start with that name.
#include <gmock/gmock.h>

#include "cli/small_runs.h"

namespace witan::test {
namespace {

using ::testing::HasSubstr;

class SftStart : public SmallRuns {
 protected:
  SftStart() {
    write_text(folder_ / "chat.jinja",
               "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
               "{% if add_generation_prompt %}assistant: {% endif %}");
    write_chats();
    write_text(folder_ / "broken.jsonl", "{\"messages\": [}\n");
    write_text(folder_ / "empty.jsonl", "");
  }
  Said start(const std::string& data, const std::string& length = "64") const {
    const std::string tokenizer = std::string(WITAN_SOURCE_DIR) + "/tests/golden/tokenizer/gpt2.json";
    return run(sft_args("mine", data,
                        {"--tokenizer", tokenizer, "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size",
                         "32", "--num-experts", "2", "--seq-length", length}));
  }
  bool has_run() const { return fs::exists(folder_ / "runs/mine"); }
};

TEST_F(SftStart, LeavesNoFilesIfNothingCouldBeRead) {
  for (const char* data : {"nothere.jsonl", "text.txt", "empty.jsonl"}) {
    EXPECT_EQ(start(data).code, 4) << data;
    EXPECT_FALSE(has_run()) << data;
  }
}

// The unusable rows are listed there, and tokens are kept.
TEST_F(SftStart, LeftoversAreNotARunAndDoNotBlockTheNextOne) {
  const Said broken = start("broken.jsonl");
  EXPECT_EQ(broken.code, 4);
  EXPECT_THAT(broken.err, HasSubstr("mine/data/tokens.quarantine.jsonl"));
  EXPECT_TRUE(has_run());
  EXPECT_THAT(run({"runs"}).err, HasSubstr("mine: no run: a start that failed left tokens there"));
  const Said cut = start("chats.jsonl", "4");
  EXPECT_EQ(cut.code, 4);
  EXPECT_THAT(cut.err, HasSubstr("has no conversation with a token to learn from in its first 5 tokens"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/mine/config.toml"));
  const Said good = start("chats.jsonl");
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(run({"runs"}).out, HasSubstr("mine  finished"));
}

}  // namespace
}  // namespace witan::test
