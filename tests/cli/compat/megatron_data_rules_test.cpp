// Flags for data and tokenizers: blends, splits, vocabularies.
#include "cli/compat/megatron_support.h"

namespace witan::test {
namespace {

TEST(Megatron, DataIsABlendInMegatronsOrder) {
  const DataConfig one = read_config({"--bf16", "--data-path", "data/my", "--tokenizer", "t"}).data;
  EXPECT_EQ(one.data_path, "data/my");
  EXPECT_EQ(one.data_samples, "megatron");
  EXPECT_EQ(one.split, "969,30,1");
  const Words blend = {"--bf16", "--tokenizer", "t", "--data-path", "0.7", "a", "0.3", "b"};
  EXPECT_EQ(read_config(blend).data.data_path, "0.7,a,0.3,b");
  const DataConfig ours = read_config({"--bf16", "--data-path", "a", "--tokenizer", "t", "--data-samples", "witan",
                                       "--data-cache-path", "cache"})
                              .data;
  EXPECT_EQ(ours.data_samples, "witan");
  EXPECT_EQ(read_config({"--bf16", "--sft", "--data-path", "a", "--tokenizer", "t"}).data.data_samples, "witan");
  EXPECT_EQ(ours.data_cache_path, "cache");
  const DataConfig parts = read_config({"--bf16", "--tokenizer", "t", "--train-data-path", "1", "a", "2", "b",
                                        "--valid-data-path", "c", "--test-data-path", "d"})
                               .data;
  EXPECT_EQ(parts.train_data_path, "1,a,2,b");
  EXPECT_EQ(parts.valid_data_path, "c");
  EXPECT_EQ(parts.test_data_path, "d");
  EXPECT_EQ(parts.data_samples, "megatron");
  EXPECT_TRUE(contains(config_refused({"--bf16", "--data-path", "0.7", "a", "x", "b"}),
                       "some datasets have a weight and some have none"));
}

TEST(Megatron, ReadsBlendsFromFiles) {
  const TempFolder folder;
  write_text(folder / "blend", "0.3 a\n0.7\tb\n");
  write_text(folder / "parts", R"({"train": ["1", "a", "2", "b"], "valid": "c", "test": null})");
  const auto read = [&](const char* flag, const char* file) {
    return read_config({"--bf16", "--tokenizer", "t", flag, (folder / file).string()}).data;
  };
  EXPECT_EQ(read("--data-args-path", "blend").data_path, "0.3,a,0.7,b");
  const DataConfig parts = read("--per-split-data-args-path", "parts");
  EXPECT_EQ(parts.train_data_path, "1,a,2,b");
  EXPECT_EQ(parts.valid_data_path, "c");
  EXPECT_EQ(parts.test_data_path, "");
  const auto refused = [&](const char* flag, const char* file) {
    return config_refused({"--bf16", flag, (folder / file).string()});
  };
  EXPECT_TRUE(contains(refused("--data-args-path", "none"), "none"));
  EXPECT_TRUE(contains(refused("--per-split-data-args-path", "blend"), "blend: byte"));
}

TEST(Megatron, KeepsSharesOfSplits) {
  EXPECT_EQ(read_config({"--bf16", "--data-path", "data/my"}).data.held_out_fraction, 0.031);
  EXPECT_EQ(read_config({"--bf16", "--data-path", "data/my", "--split", "99990,8,2"}).data.held_out_fraction, 1e-4);
  EXPECT_EQ(read_config({"--bf16", "--split", "90, 10"}).data.held_out_fraction, 0.1);
  EXPECT_EQ(read_config({"--bf16", "--split", "90, 10"}).data.split, "90, 10");
  EXPECT_EQ(read_config({"--bf16", "--data-path", "data/my", "--split", "100,0,0", "--eval-iters", "0"}).data.split,
            "100,0,0");
  EXPECT_TRUE(contains(config_refused({"--bf16", "--split", "100,1e-9,0"}), "from a millionth"));
  for (const char* bad : {"", "a", "1,2,3,4", "1,-2", "0,0,0", "nan,1", "1,,2"})
    EXPECT_TRUE(contains(config_refused({"--bf16", "--split", bad}), "--split")) << bad;
}

TEST(Megatron, TokenizersAreFilesOfAnyKind) {
  TempFolder folder;
  write_text(folder / "llama/tokenizer.json", "{}");
  const std::string file = folder / "llama/tokenizer.json";
  const Words type = {"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model"};
  const auto with = [&](const std::string& model) {
    Words words = type;
    words.push_back(model);
    return words;
  };
  EXPECT_EQ(read_config(with(file)).data.tokenizer, file);
  EXPECT_EQ(read_config(with(folder / "llama")).data.tokenizer, file);
  EXPECT_TRUE(contains(config_refused(with("meta-llama/Llama-3.1-8B")), "hub are not looked up"));
  write_text(folder / "x.model", "");
  for (const char* kind : {"Llama2Tokenizer", "SentencePieceTokenizer", "GPTSentencePieceTokenizer"})
    EXPECT_EQ(read_config({"--tokenizer-type", kind, "--tokenizer-model", folder / "x.model"}).data.tokenizer,
              std::string(folder / "x.model"));
  EXPECT_EQ(read_config({"--tokenizer-model", folder / "x.model"}).data.tokenizer, std::string(folder / "x.model"));
  EXPECT_TRUE(contains(config_refused({"--tokenizer-type", "TikTokenizer"}), "--tokenizer FILE"));
  for (const char* name : {"vocab.json", "merges.txt", "gpt2-vocab.json", "gpt2-merges.txt"})
    write_text(folder / name, "");
  const auto of_gpt2 = [&](const std::string& vocabulary, const std::string& merges) {
    return Words{"--tokenizer-type",  "GPT2BPETokenizer", "--vocab-file",
                 folder / vocabulary, "--merge-file",     folder / merges};
  };
  EXPECT_EQ(read_config(of_gpt2("vocab.json", "merges.txt")).data.tokenizer, std::string(folder / "vocab.json"));
  EXPECT_EQ(read_config(of_gpt2("gpt2-vocab.json", "gpt2-merges.txt")).data.tokenizer,
            std::string(folder / "gpt2-vocab.json"));
  EXPECT_EQ(read_config(of_gpt2("gpt2-vocab.json", "merges.txt")).data.tokenizer,
            (folder / "gpt2-vocab.json").string() + "," + (folder / "merges.txt").string());
  EXPECT_TRUE(contains(config_refused(of_gpt2("vocab.json", "none.txt")), "there is no file"));
  EXPECT_TRUE(contains(config_refused({"--vocab-file", "v.json"}), "needs --merge-file"));
  const Words both = {"--vocab-file", "v.json", "--merge-file", "m.txt", "--tokenizer", "t.json"};
  EXPECT_TRUE(
      contains(config_refused(both), "names a tokenizer, and so does --tokenizer t.json: leave one of them out"));
  EXPECT_TRUE(contains(config_refused({"--tokenizer-model", "m", "--tokenizer", "t"}), "so does --tokenizer t"));
  EXPECT_TRUE(contains(config_refused({"--vocab-file", "v", "--merge-file", "m", "--tokenizer-model", "t"}),
                       "so does --tokenizer-model t"));
  EXPECT_TRUE(contains(config_refused({"--merge-file", "m.txt"}), "needs --vocab-file"));
  EXPECT_TRUE(
      contains(config_refused({"--tokenizer-type", "GPT2BPETokenizer"}), "needs --vocab-file and --merge-file"));
}

}  // namespace
}  // namespace witan::test
