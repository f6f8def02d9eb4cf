// witan export of runs fine-tuned on conversations.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/small_runs.h"
#include "witan/base/json.h"
#include "witan/formats/gguf.h"

namespace witan::test {
namespace {

// Runs fine-tuned on conversations with <|im_end|> (301) at the end of a turn and <|endoftext|> (299) at the end of a
// text.
class ChatRunExports : public SmallRuns {
 protected:
  void SetUp() override {
    train_small("base", {"--ranks", "1"});
    export_to("base", "base");
    Json tokenizer = Json::parse(file("base/tokenizer.json"));
    Json token = tokenizer["added_tokens"][0];
    ASSERT_EQ(token["id"], 299);
    for (const auto& [id, text] : {std::pair(300, "<|im_start|>"), std::pair(301, "<|im_end|>")}) {
      token["id"] = id;
      token["content"] = text;
      tokenizer["added_tokens"].push_back(token);
    }
    write_text(folder_ / "tokenizer.json", tokenizer.dump());
    write_text(folder_ / "chat.jinja",
               "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
    write_chats();
  }
  void tune(const std::string& name, std::vector<std::string> more) const {
    more.insert(more.end(), {"--seq-length", "32"});
    done(sft_args(name, "chats.jsonl", more));
  }
  void tune_small(const std::string& name) const {
    tune(name, {"--tokenizer", folder_ / "tokenizer.json", "--num-layers", "2", "--hidden-size", "32",
                "--ffn-hidden-size", "32", "--num-experts", "4"});
  }
  void export_to(const std::string& name, const std::string& out) const {
    done({"export", "--run", name, "--format", "hf", folder_ / out});
  }
  Json json(const std::string& name) const { return Json::parse(file(name)); }
};

TEST_F(ChatRunExports, AnswersEndAtTheEndOfATurnOrText) {
  tune_small("chat");
  export_to("chat", "hf");
  for (const char* name : {"hf/generation_config.json", "hf/config.json"})
    EXPECT_EQ(json(name)["eos_token_id"], (Json{301, 299})) << name;
  EXPECT_EQ(json("hf/tokenizer_config.json")["eos_token"], "<|im_end|>");
  EXPECT_EQ(file("hf/chat_template.jinja"), file("chat.jinja"));
}

TEST_F(ChatRunExports, KeepOtherSettingsOfAnImportedFolder) {
  tune_small("chat");
  export_to("chat", "hf");
  const std::string config = file("hf/config.json");
  write_text(folder_ / "hf/generation_config.json", R"({"eos_token_id": 299, "temperature": 0.7})");
  tune("tuned", {"--init-from", folder_ / "hf"});
  export_to("tuned", "again");
  EXPECT_EQ(json("again/generation_config.json"), (Json{{"eos_token_id", {301, 299}}, {"temperature", 0.7}}));
  EXPECT_EQ(file("again/config.json"), config);
  // Files that already end turns stay unchanged, and missing ones are created.
  write_text(folder_ / "hf/generation_config.json", R"({ "eos_token_id": [299,301]})");
  tune("chatty", {"--init-from", folder_ / "hf"});
  export_to("chatty", "same");
  EXPECT_EQ(file("same/generation_config.json"), file("hf/generation_config.json"));
  fs::remove(folder_ / "hf/generation_config.json");
  tune("bare", {"--init-from", folder_ / "hf"});
  export_to("bare", "bare");
  EXPECT_EQ(json("bare/generation_config.json")["eos_token_id"], (Json{301, 299}));
}

// llama.cpp ends an answer at the end-of-text or the end-of-turn token.
TEST_F(ChatRunExports, AGgufFileNamesTheEndOfATurn) {
  tune_small("chat");
  done({"export", "--run", "chat", "--format", "gguf", folder_ / "chat.gguf"});
  {
    const GgufFile written(folder_ / "chat.gguf");
    const GgufMetadata& keys = written.metadata();
    EXPECT_EQ(keys.texts("tokenizer.ggml.tokens").at(301), "<|im_end|>");
    EXPECT_EQ(keys.integer("tokenizer.ggml.eos_token_id"), 301);
    EXPECT_EQ(keys.integer("tokenizer.ggml.eot_token_id"), 301);
    EXPECT_EQ(keys.text("tokenizer.chat_template"), file("chat.jinja"));
  }
  // It can be imported and exported again unchanged.
  done({"import", folder_ / "chat.gguf", "--run", "back"});
  EXPECT_EQ(json("runs/back/hf/config.json")["eos_token_id"], 301);
  done({"export", "--run", "back", "--format", "gguf", folder_ / "again.gguf"});
  EXPECT_TRUE(file("again.gguf") == file("chat.gguf"));
  // A run that was not fine-tuned this way ends texts.
  done({"export", "--run", "base", "--format", "gguf", folder_ / "base.gguf"});
  const GgufFile base(folder_ / "base.gguf");
  EXPECT_EQ(base.metadata().integer("tokenizer.ggml.eos_token_id"), 299);
  EXPECT_EQ(base.metadata().find("tokenizer.ggml.eot_token_id"), nullptr);
}

}  // namespace
}  // namespace witan::test
