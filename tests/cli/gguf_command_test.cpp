// witan import and witan export with GGUF files, and runs that start from one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/cli_support.h"
#include "witan/base/file.h"
#include "witan/base/gguf.h"

namespace witan::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GgufCommands : public ::testing::Test {
 protected:
  GgufCommands() { write_text(folder_ / "text.txt", some_text(400)); }

  Said run(std::vector<std::string> args) const {
    args.insert(args.end(), {"--runs-folder", (folder_ / "runs").string()});
    return witan(args);
  }
  Said done(const std::vector<std::string>& args) const {
    Said said = run(args);
    EXPECT_EQ(said.code, 0) << said.err;
    return said;
  }
  void train(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"train",
                                     "--run",
                                     name,
                                     "--data",
                                     folder_ / "text.txt",
                                     "--seq-length",
                                     "16",
                                     "--micro-batch-size",
                                     "1",
                                     "--global-batch-size",
                                     "4",
                                     "--train-iters",
                                     "2",
                                     "--sample-tokens",
                                     "0",
                                     "--held-out-fraction",
                                     "0.2",
                                     "--device",
                                     "cpu",
                                     "--deterministic"};
    args.insert(args.end(), more.begin(), more.end());
    done(args);
  }
  void train_small(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"--tokenizer-vocab-size", "300", "--num-layers",  "2", "--hidden-size", "32",
                                     "--ffn-hidden-size",      "32",  "--num-experts", "4"};
    args.insert(args.end(), more.begin(), more.end());
    train(name, args);
  }
  std::string greedy(const std::string& name) const {
    return done({"generate", "the ", "--run", name, "--greedy", "--max-tokens", "12"}).out;
  }

  TempFolder folder_;
};

TEST_F(GgufCommands, ARunGoesOutAndComesBackTheSame) {
  train_small("one", {"--ranks", "1"});
  const fs::path file = folder_ / "one.gguf";
  EXPECT_THAT(done({"export", "--run", "one", "--format", "gguf", file}).out,
              AllOf(HasSubstr("MixtralForCausalLM (llama)"), HasSubstr("none is left over")));
  EXPECT_THAT(run({"export", "--run", "one", "--format", "gguf", file}).err, HasSubstr("exists already"));
  EXPECT_THAT(done({"import", file, "--run", "two"}).out, HasSubstr("vocabulary   300 entries\n"));
  EXPECT_EQ(greedy("two"), greedy("one"));
  done({"export", "--run", "two", "--format", "gguf", folder_ / "two.gguf"});
  EXPECT_EQ(read_file(folder_ / "two.gguf"), read_file(file));
  // The other way round, by a Hugging Face folder.
  done({"export", "--run", "two", "--format", "hf", folder_ / "hf"});
  done({"export", "--run", "one", "--format", "hf", folder_ / "hf-one"});
  EXPECT_EQ(read_file(folder_ / "hf/model.safetensors"), read_file(folder_ / "hf-one/model.safetensors"));
}

TEST_F(GgufCommands, AnyLayoutsCheckpointGivesTheSameBytes) {
  train_small("one", {"--ranks", "1"});
  done({"export", "--run", "one", "--format", "gguf", folder_ / "one.gguf", "--dtype", "q8_0"});
  train_small("other", {"--mesh", "shard=2,expert=2"});
  done({"export", "--run", "other", "--format", "gguf", folder_ / "other.gguf", "--dtype", "q8_0"});
  EXPECT_EQ(read_file(folder_ / "other.gguf"), read_file(folder_ / "one.gguf"));
  EXPECT_THAT(run({"export", "--run", "one", "--dtype", "q8_0", folder_ / "hf"}).err, HasSubstr("add --format gguf"));
}

TEST_F(GgufCommands, ARunStartsFromAFileWithItsTokenizer) {
  train_small("one", {"--ranks", "1"});
  const fs::path file = folder_ / "one.gguf";
  done({"export", "--run", "one", "--format", "gguf", file});
  train("tuned", {"--init-from", file, "--ranks", "2"});
  EXPECT_EQ(witan({"tokenizer", "encode", "the king", "--tokenizer", file}).out,
            witan({"tokenizer", "encode", "the king", "--tokenizer", folder_ / "runs/one/tokenizer.json"}).out);
}

// A folder's chat template and the tokens with a part are the file's, and come back.
TEST_F(GgufCommands, TheChatTemplateTravels) {
  train_small("one", {"--ranks", "1"});
  fs::create_directories(folder_ / "runs/one/hf");
  write_text(
      folder_ / "runs/one/hf/tokenizer_config.json",
      R"({"chat_template": "{{ messages }}", "eos_token": {"content": "<|endoftext|>"}, "add_bos_token": true})");
  done({"export", "--run", "one", "--format", "gguf", folder_ / "one.gguf"});
  const GgufFile file(folder_ / "one.gguf");
  EXPECT_EQ(file.metadata().text("tokenizer.chat_template"), "{{ messages }}");
  EXPECT_EQ(file.metadata().integer("tokenizer.ggml.eos_token_id"), 299);
  EXPECT_EQ(file.metadata().flag("tokenizer.ggml.add_bos_token"), true);
  done({"import", folder_ / "one.gguf", "--run", "two"});
  EXPECT_THAT(read_file(folder_ / "runs/two/hf/tokenizer_config.json"),
              AllOf(HasSubstr("{{ messages }}"), HasSubstr("<|endoftext|>")));
}

TEST_F(GgufCommands, WhatIsNoModelIsRefused) {
  write_text(folder_ / "bad.gguf", "GGUF and no more");
  EXPECT_THAT(run({"import", folder_ / "bad.gguf", "--run", "bad"}).err, HasSubstr("bad.gguf: GGUF version"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/bad"));
}

}  // namespace
}  // namespace witan::test
