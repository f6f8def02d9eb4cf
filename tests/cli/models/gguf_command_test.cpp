// witan import and witan export with GGUF files, and runs that start from one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/small_runs.h"
#include "witan/base/json.h"
#include "witan/formats/gguf.h"

namespace witan::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GgufCommands : public SmallRuns {
 protected:
  void train_small(const std::string& name, std::vector<std::string> more) const {
    more.emplace_back("--deterministic");
    SmallRuns::train_small(name, more);
  }
  std::string greedy(const std::string& name) const {
    return done({"generate", "the ", "--run", name, "--greedy", "--max-tokens", "12"}).out;
  }
};

TEST_F(GgufCommands, ExportAndImportRoundTripARun) {
  train_small("one", {"--ranks", "1"});
  const fs::path file = folder_ / "one.gguf";
  EXPECT_THAT(done({"export", "--run", "one", "--format", "gguf", file}).out,
              AllOf(HasSubstr("MixtralForCausalLM (llama)"), HasSubstr("tensors were written")));
  EXPECT_THAT(run({"export", "--run", "one", "--format", "gguf", file}).err, HasSubstr("exists already"));
  EXPECT_THAT(done({"import", file, "--run", "two"}).out, HasSubstr("vocabulary   300 entries\n"));
  EXPECT_EQ(greedy("two"), greedy("one"));
  done({"export", "--run", "two", "--format", "gguf", folder_ / "two.gguf"});
  EXPECT_EQ(read_file(folder_ / "two.gguf"), read_file(file));
  done({"export", "--run", "two", "--format", "hf", folder_ / "two"});
  EXPECT_TRUE(fs::exists(folder_ / "two/tokenizer.json"));
  // The reverse direction, through a Hugging Face folder.
  done({"export", "--run", "two", "--format", "hf", folder_ / "hf"});
  done({"export", "--run", "one", "--format", "hf", folder_ / "hf-one"});
  EXPECT_EQ(read_file(folder_ / "hf/model.safetensors"), read_file(folder_ / "hf-one/model.safetensors"));
}

TEST_F(GgufCommands, CheckpointsOfAnyLayoutExportTheSameBytes) {
  train_small("one", {"--ranks", "1"});
  done({"export", "--run", "one", "--format", "gguf", folder_ / "one.gguf", "--dtype", "q8_0"});
  train_small("other", {"--mesh", "shard=2,expert=2"});
  done({"export", "--run", "other", "--format", "gguf", folder_ / "other.gguf", "--dtype", "q8_0"});
  EXPECT_EQ(read_file(folder_ / "other.gguf"), read_file(folder_ / "one.gguf"));
  EXPECT_THAT(run({"export", "--run", "one", "--dtype", "q8_0", folder_ / "hf"}).err, HasSubstr("add --format gguf"));
}

TEST_F(GgufCommands, RunsStartFromAFileWithItsTokenizer) {
  train_small("one", {"--ranks", "1"});
  const fs::path file = folder_ / "one.gguf";
  done({"export", "--run", "one", "--format", "gguf", file});
  train("tuned", {"--init-from", file, "--ranks", "2"});
  EXPECT_EQ(witan({"tokenizer", "encode", "the king", "--tokenizer", file}).out,
            witan({"tokenizer", "encode", "the king", "--tokenizer", folder_ / "runs/one/tokenizer.json"}).out);
}

// A folder's chat template and special tokens are written to the file and read back.
TEST_F(GgufCommands, KeepsTheChatTemplate) {
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

TEST_F(GgufCommands, RefusesInvalidModels) {
  write_text(folder_ / "bad.gguf", "GGUF and no more");
  EXPECT_THAT(run({"import", folder_ / "bad.gguf", "--run", "bad"}).err, HasSubstr("bad.gguf: GGUF version"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/bad"));
}

// Sections of rotary positions and layers that read images' features are those of the imported config.json.
TEST_F(GgufCommands, KeysOfImagesAreThoseOfTheImportedModel) {
  const auto keys_of = [&](const std::string& name) {
    const fs::path path = folder_ / (name + ".gguf");
    done({"export", "--run", name, "--format", "gguf", path});
    return GgufFile(path).metadata();
  };
  done({"import", fs::path(WITAN_SOURCE_DIR) / "tests/golden/convert/qwen3_vl_text", "--run", "whole"});
  const GgufMetadata whole = keys_of("whole");
  EXPECT_THAT(whole.integers("qwen3vl.rope.dimension_sections"), ElementsAre(2, 1, 1, 0));
  EXPECT_EQ(whole.integer("qwen3vl.n_deepstack_layers"), 1);
  done({"import", folder_ / "whole.gguf", "--run", "text"});
  EXPECT_EQ(Json::parse(file("runs/text/hf/config.json"))["rope_parameters"]["mrope_section"], Json::array({2, 1, 1}));
  const GgufMetadata text = keys_of("text");
  EXPECT_THAT(text.integers("qwen3vl.rope.dimension_sections"), ElementsAre(2, 1, 1, 0));
  EXPECT_EQ(text.integer("qwen3vl.n_deepstack_layers"), 0);
  const fs::path config = folder_ / "runs/whole/hf/config.json";
  Json changed = Json::parse(read_file(config));
  changed["text_config"]["rope_parameters"]["mrope_section"] = "no list";
  write_text(config, changed.dump());
  EXPECT_THAT(run({"export", "--run", "whole", "--format", "gguf", folder_ / "wrong.gguf"}).err,
              HasSubstr("config.json: mrope_section = \"no list\": must be a list of up to 4 whole numbers"));
}

}  // namespace
}  // namespace witan::test
