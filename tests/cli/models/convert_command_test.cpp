// witan import and witan export, and runs that start from imported models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/small_runs.h"
#include "witan/base/json.h"

namespace witan::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kGolden = fs::path(WITAN_SOURCE_DIR) / "tests/golden/convert";

class ConvertCommands : public SmallRuns {
 protected:
  std::string export_to(const std::string& name, const std::string& out) const {
    const Said said = run({"export", "--run", name, "--format", "hf", folder_ / out});
    EXPECT_EQ(said.code, 0) << said.err;
    return said.out;
  }
};

TEST_F(ConvertCommands, ExportAndImportRoundTripARun) {
  train_small("one", {"--ranks", "1"});
  EXPECT_THAT(export_to("one", "hf"), AllOf(HasSubstr("MixtralForCausalLM"), HasSubstr("tensors were written")));
  EXPECT_EQ(Json::parse(file("hf/config.json"))["num_local_experts"], 4);
  const Said imported = run({"import", folder_ / "hf", "--run", "two"});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("vocabulary   300 entries\n"));
  const auto text = [&](const std::string& name) {
    return run({"generate", "the ", "--run", name, "--greedy", "--max-tokens", "12"}).out;
  };
  EXPECT_EQ(text("two"), text("one"));
  export_to("two", "again");
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"})
    EXPECT_EQ(file(cat("again/", name)), file(cat("hf/", name))) << name;
}

TEST_F(ConvertCommands, RunsShowsTheOriginOfWeights) {
  train_small("one", {"--ranks", "1"});
  export_to("one", "hf");
  done({"export", "--run", "one", "--format", "gguf", folder_ / "one.gguf"});
  done({"export", "--run", "one", "--format", "megatron", folder_ / "megatron"});
  const std::vector<std::pair<std::string, std::string>> sources = {
      {"hf", "Hugging Face folder "}, {"one.gguf", "GGUF model "}, {"megatron", "Megatron-LM checkpoint "}};
  for (const auto& [name, kind] : sources) {
    done({"import", folder_ / name, "--run", "from-" + name});
    EXPECT_THAT(file("runs/from-" + name + "/config.toml"), HasSubstr("# from " + kind + (folder_ / name).string()));
  }
  train("tuned", {"--init-from", "from-hf", "--ranks", "1"});
  std::map<std::string, Json> from;
  for (const Json& one : Json::parse(run({"runs", "--json"}).out))
    from[one["name"].get<std::string>()] = one.value("from", Json());
  for (const auto& [name, kind] : sources) EXPECT_EQ(from["from-" + name], kind + (folder_ / name).string());
  EXPECT_EQ(from["tuned"], "init_from from-hf");
  EXPECT_TRUE(from["one"].is_null());
}

// A reader uses its architecture's default for missing special tokens: Mixtral's end of text is token 2.
TEST_F(ConvertCommands, FoldersOfTrainedRunsNameTheEndOfText) {
  train_small("one", {"--ranks", "1"});
  export_to("one", "hf");
  const Json vocabulary = Json::parse(file("hf/tokenizer.json"))["added_tokens"];
  ASSERT_EQ(vocabulary[0]["content"], "<|endoftext|>");
  const Json config = Json::parse(file("hf/config.json")), generation = Json::parse(file("hf/generation_config.json"));
  for (const Json& json : {config, generation}) {
    EXPECT_EQ(json["eos_token_id"], vocabulary[0]["id"]);
    ASSERT_TRUE(json.contains("bos_token_id"));
    EXPECT_TRUE(json["bos_token_id"].is_null());
  }
  const Json tokenizer = Json::parse(file("hf/tokenizer_config.json"));
  EXPECT_EQ(tokenizer["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(tokenizer["eos_token"], "<|endoftext|>");
  EXPECT_EQ(tokenizer["model_max_length"], config["max_position_embeddings"]);
  // They round-trip.
  ASSERT_EQ(run({"import", folder_ / "hf", "--run", "two"}).code, 0);
  export_to("two", "again");
  for (const char* name : {"config.json", "generation_config.json", "tokenizer_config.json"})
    EXPECT_EQ(file(cat("again/", name)), file(cat("hf/", name))) << name;
}

// Without a tokenizer no special token is known, so none is written.
TEST_F(ConvertCommands, WithoutATokenizerNoTokenEndsTexts) {
  train_small("one", {"--ranks", "1"});
  done({"export", "--run", "one", "--format", "megatron", folder_ / "megatron"});
  done({"import", folder_ / "megatron", "--run", "bare"});
  export_to("bare", "hf");
  const Json config = Json::parse(file("hf/config.json"));
  ASSERT_TRUE(config.contains("eos_token_id"));
  EXPECT_TRUE(config["eos_token_id"].is_null());
  EXPECT_FALSE(fs::exists(folder_ / "hf/tokenizer_config.json"));
}

// Deterministic runs whose layouts shard weights in different ways.
TEST_F(ConvertCommands, CheckpointsOfAnyLayoutExportTheSameBytes) {
  train_small("one", {"--ranks", "1", "--deterministic"});
  export_to("one", "one-hf");
  int number = 0;
  for (const char* mesh : {"replicate=2,expert=2", "pipeline=2", "shard=4,expert=2"}) {
    const std::string name = cat("run", ++number);
    train_small(name, {"--mesh", mesh, "--deterministic"});
    export_to(name, name + "-hf");
    EXPECT_EQ(file(name + "-hf/model.safetensors"), file("one-hf/model.safetensors")) << mesh;
  }
}

// Texts, numbers and key patterns come from the source for every architecture.
TEST_F(ConvertCommands, RunsOfEveryArchitectureArePlannedFromTheirFolders) {
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(kGolden)) {
    if (!entry.is_directory()) continue;
    ++folders;
    const Said plan = run({"plan", "--init-from", entry.path(), "--ranks", "1", "--seq-length", "16",
                           "--micro-batch-size", "1", "--global-batch-size", "4", "--device", "cpu"});
    EXPECT_EQ(plan.code, 0) << entry.path() << ": " << plan.err;
    const Said train = run({"train", "--init-from", entry.path(), "--data", folder_ / "text.txt", "--device", "cpu"});
    EXPECT_EQ(train.code, 3);
    EXPECT_THAT(train.err, HasSubstr("--tokenizer FILE")) << entry.path();
  }
  EXPECT_GE(folders, 10);
}

// An interrupted command leaves this.
TEST_F(ConvertCommands, RewritesUnfinishedOutput) {
  fs::create_directories(folder_ / "runs/one/checkpoints/.tmp-step-0");
  write_text(folder_ / "runs/one/.unfinished", "");
  const fs::path source = kGolden / "mixtral";
  ASSERT_EQ(run({"import", source, "--run", "one"}).code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "runs/one/.unfinished"));
  EXPECT_THAT(run({"import", source, "--run", "one"}).err, HasSubstr("already"));
  fs::create_directories(folder_ / "hf");
  write_text(folder_ / "hf/model.safetensors", "half");
  EXPECT_THAT(run({"export", "--run", "one", folder_ / "hf"}).err, HasSubstr("is not empty"));
  write_text(folder_ / "hf/.unfinished", "");
  export_to("one", "hf");
  EXPECT_EQ(file("hf/config.json"), read_file(source / "config.json"));
  EXPECT_FALSE(fs::exists(folder_ / "hf/.unfinished"));
  const Said refused = run({"export", "--run", "one", folder_ / "other", "--max-shard-size", "0"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr("--max-shard-size 0"));
}

// A ledger that cannot be written leaves no model behind, so that repeating the command can succeed.
TEST_F(ConvertCommands, ExportsNothingWithoutALedger) {
  train_small("one", {"--ranks", "1"});
  const fs::path in_the_way = folder_ / "runs/one/export-ledger.json";
  fs::create_directories(in_the_way / "x");
  const std::vector<std::pair<std::string, fs::path>> formats = {
      {"hf", folder_ / "hf"}, {"megatron", folder_ / "megatron"}, {"gguf", folder_ / "one.gguf"}};
  for (const auto& [format, out] : formats) {
    const Said said = run({"export", "--run", "one", "--format", format, out});
    EXPECT_NE(said.code, 0) << format;
    EXPECT_THAT(said.err, HasSubstr("export-ledger.json")) << format;
    EXPECT_FALSE(fs::exists(out)) << format;
  }
  fs::remove_all(in_the_way);
  for (const auto& [format, out] : formats) {
    EXPECT_EQ(run({"export", "--run", "one", "--format", format, out}).code, 0) << format;
    EXPECT_TRUE(fs::exists(out)) << format;
    EXPECT_TRUE(fs::is_regular_file(in_the_way)) << format;
  }
}

TEST_F(ConvertCommands, ImportedRunsAreStartedFromAndNotResumed) {
  train_small("source", {"--ranks", "1"});
  export_to("source", "hf");
  ASSERT_EQ(run({"import", folder_ / "hf", "--run", "imported"}).code, 0);
  const std::string runs = folder_ / "runs";
  // The imported run has no text and no steps.
  for (const char* command : {"eval", "report"}) {
    const Said none = command == std::string("eval") ? run({"eval", "--run", "imported"}) : run({"report", "imported"});
    EXPECT_EQ(none.code, 4);
    EXPECT_THAT(none.err, AllOf(HasSubstr("imported was imported"),
                                HasSubstr(cat("witan eval --run imported --runs-folder ", runs, " --data FILE`"))));
  }
  EXPECT_THAT(run({"report", "imported"}).err,
              HasSubstr(cat("`witan train --run NEW --init-from imported --runs-folder ", runs, "`")));
  const Said measured = run({"eval", "--run", "imported", "--data", folder_ / "text.txt"});
  EXPECT_EQ(measured.code, 0) << measured.err;
  const Said resumed = run({"train", "--run", "imported", "--train-iters", "9"});
  EXPECT_EQ(resumed.code, 3);
  EXPECT_THAT(resumed.err, HasSubstr("witan train --run NEW --init-from imported"));
  const Said with_data = run({"train", "--run", "imported", "--data", folder_ / "text.txt"});
  EXPECT_THAT(with_data.err, HasSubstr("was imported"));
  const auto losses = [&](const std::string& name) {
    std::string all;
    std::istringstream lines(file(cat("runs/", name, "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);)
      if (const Json event = Json::parse(line); event.value("kind", "") == "step") all += event.at("loss").dump() + " ";
    return all;
  };
  // Different bytes of an equivalent tokenizer.
  write_text(folder_ / "hf/tokenizer.json", Json::parse(file("hf/tokenizer.json")).dump());
  train("from-hf", {"--init-from", folder_ / "hf", "--ranks", "1"});
  EXPECT_THAT(file("runs/from-hf/train.log"), Not(HasSubstr("another tokenizer")));
  train("from-run", {"--init-from", "imported", "--ranks", "1"});
  train("divided", {"--init-from", "imported", "--mesh", "replicate=2,expert=2"});
  EXPECT_NE(losses("from-hf"), "");
  EXPECT_EQ(losses("from-run"), losses("from-hf"));
  EXPECT_EQ(losses("from-run").substr(0, 6), losses("divided").substr(0, 6));
  // The original tokenizer files are exported.
  export_to("from-run", "tuned");
  EXPECT_EQ(file("tuned/config.json"), file("hf/config.json"));
  EXPECT_NE(file("tuned/model.safetensors"), file("hf/model.safetensors"));
  const Said other = run({"train", "--run", "other", "--init-from", "imported", "--num-layers", "3"});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("num_layers = 3, not 2"));
}

// A run that starts over may use another model than before, whose model keys and tokenizer it takes; its own training
// settings stay.
TEST_F(ConvertCommands, FreshRunsMayStartFromAnotherModel) {
  train_small("wide", {"--ranks", "1"});
  train("long", {"--tokenizer-vocab-size", "280", "--num-layers", "3", "--hidden-size", "32", "--ffn-hidden-size", "32",
                 "--num-experts", "4", "--rotary-base", "500", "--ranks", "1"});
  train("tuned", {"--init-from", "wide", "--ranks", "1", "--lora-rank", "2"});
  const fs::path archive = folder_ / "runs/tuned.1";
  // Errors are found before the old run is archived.
  const Said other = run({"train", "--run", "tuned", "--fresh", "--init-from", "long", "--num-layers", "2"});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("num_layers = 2, not 3"));
  EXPECT_EQ(run({"train", "--run", "tuned", "--fresh", "--num-layers", "3"}).code, 3);
  EXPECT_FALSE(fs::exists(archive));
  const Said anew = run({"train", "--run", "tuned", "--fresh", "--init-from", "long"});
  ASSERT_EQ(anew.code, 0) << anew.err;
  EXPECT_TRUE(fs::exists(archive));
  EXPECT_THAT(file("runs/tuned/config.toml"), AllOf(HasSubstr("num_layers = 3"), HasSubstr("lora_rank = 2")));
  EXPECT_EQ(file("runs/tuned/tokenizer.json"), file("runs/long/tokenizer.json"));
}

// Weights identify tokens only by number.
TEST_F(ConvertCommands, RefusesATokenizerWithOtherTokens) {
  train_small("base", {"--ranks", "1"});
  const std::string own = folder_ / "runs/base/tokenizer.json";
  Json other = Json::parse(file("runs/base/tokenizer.json"));
  const auto written = [&](const std::string& name) {
    write_text(folder_ / name, other.dump());
    return (folder_ / name).string();
  };
  const auto planned = [&](const std::string& tokenizer) {
    return run({"plan", "--run", "new", "--init-from", "base", "--tokenizer", tokenizer, "--ranks", "1", "--seq-length",
                "16", "--device", "cpu"});
  };
  for (const std::string& same : {own, written("copy.json")}) {
    const Said said = planned(same);
    EXPECT_EQ(said.code, 0) << said.err;
    EXPECT_EQ(said.err.find("is not that of the weights"), std::string::npos) << said.err;
  }
  // The same tokens, but another pre-tokenizer.
  other["normalizer"] = {{"type", "NFC"}};
  Said said = planned(written("nfc.json"));
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.err, HasSubstr("both have the same tokens, but do not divide every text into them alike"));
  // A reserved token that got a name.
  other["added_tokens"][0]["content"] = "<|reserved|>";
  auto& entries = other["model"]["vocab"];
  if (entries.contains("<|endoftext|>")) {
    entries["<|reserved|>"] = entries["<|endoftext|>"];
    entries.erase("<|endoftext|>");
  }
  said = planned(written("named.json"));
  EXPECT_THAT(said.err, AllOf(HasSubstr("warning: init_from = base: tokenizer = "), HasSubstr("<|reserved|>"),
                              HasSubstr("and so do 1 added tokens in all")));
  // Two tokens that are swapped.
  other = Json::parse(file("runs/base/tokenizer.json"));
  std::swap(other["model"]["vocab"]["a"], other["model"]["vocab"]["b"]);
  const std::string swapped = written("swapped.json");
  for (const char* command : {"plan", "train"}) {
    said = run({command, "--run", "new", "--init-from", "base", "--tokenizer", swapped, "--data", folder_ / "text.txt",
                "--ranks", "1", "--seq-length", "16", "--device", "cpu"});
    EXPECT_EQ(said.code, 3) << said.err;
    EXPECT_THAT(said.err, AllOf(HasSubstr(cat("tokenizer = ", swapped, " is not that of the weights, ")),
                                HasSubstr("is \"b\" in the one and \"a\" in the other, and 2 of 300 differ"),
                                HasSubstr("Leave tokenizer out, and the run takes the model's own")));
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs/new"));
}

TEST_F(ConvertCommands, LedgersAccountForEveryTensor) {
  const Said said = run({"import", kGolden / "mixtral", "--run", "mixtral"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, AllOf(HasSubstr("source       41 tensors of hf, 8400 elements (F32), 32.8 KiB"),
                              HasSubstr("checked      all 41 tensors were written")));
  EXPECT_THAT(said.err, HasSubstr("no tokenizer.json"));
  const Json ledger = Json::parse(file("runs/mixtral/ledger.json"));
  EXPECT_EQ(ledger["source"].size(), 41U);
  for (const Json& tensor : ledger["source"]) {
    EXPECT_FALSE(tensor["others"].empty());
    EXPECT_EQ(tensor["xxh3_128"].get<std::string>().size(), 32U);
  }
}

TEST_F(ConvertCommands, VisionLanguageModelsKeepTheirTowers) {
  const Said imported = run({"import", kGolden / "llava", "--run", "llava"});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("more: not of the text decoder: kept as it is, and exported again\n"));
  EXPECT_THAT(export_to("llava", "out"), HasSubstr("more: outside of the model: as it was imported\n"));
  EXPECT_EQ(file("out/config.json"), read_text(kGolden / "llava/config.json"));
  EXPECT_FALSE(fs::exists(folder_ / "out/side.safetensors"));
  const Json index = Json::parse(file("out/model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"].size(), 86U);
  EXPECT_EQ(index["weight_map"]["vision_tower.post_layernorm.bias"], "model-00002-of-00002.safetensors");
  done({"import", folder_ / "out", "--run", "again"});
  export_to("again", "again");
  for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "config.json"})
    EXPECT_EQ(file(cat("again/", name)), file(cat("out/", name))) << name;
  const Said other = run({"export", "--run", "llava", "--architecture", "qwen3", folder_ / "other"});
  EXPECT_EQ(other.code, 3);
}

TEST_F(ConvertCommands, FailuresLeaveNoFiles) {
  const Said bad = run({"import", folder_.path(), "--run", "bad"});
  EXPECT_EQ(bad.code, 5);
  EXPECT_THAT(bad.err, HasSubstr("has neither model.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/bad"));
  ASSERT_EQ(run({"import", kGolden / "llama", "--run", "llama"}).code, 0);
  const Said twice = run({"import", kGolden / "llama", "--run", "llama"});
  EXPECT_EQ(twice.code, 3);
  EXPECT_THAT(twice.err, HasSubstr("there is a run"));
  export_to("llama", "out");
  const Said full = run({"export", "--run", "llama", folder_ / "out"});
  EXPECT_EQ(full.code, 3);
  EXPECT_THAT(full.err, HasSubstr("is not empty"));
  const Said other = run({"export", "--run", "llama", "--architecture", "gpt2", folder_ / "gpt2"});
  EXPECT_EQ(other.code, 3);
}

// The closest architecture is first, each with the key that decides before those that follow from it.
TEST_F(ConvertCommands, UnknownArchitecturesAreComparedWithTheNearest) {
  train_small("one", {"--ranks", "1", "--swiglu", "false", "--squared-relu", "true"});
  const Said said = run({"export", "--run", "one", folder_ / "hf"});
  EXPECT_EQ(said.code, 3);
  EXPECT_THAT(said.err, HasSubstr(" would have instead:\n  mixtral: squared_relu = false, not true and 1 more\n"));
  EXPECT_THAT(said.err, HasSubstr("or try --format megatron; --architecture NAME says why another one does not fit"));
  EXPECT_LE(std::ranges::count(said.err, '\n'), 6) << said.err;
  EXPECT_FALSE(fs::exists(folder_ / "hf"));
  const Said gguf = run({"export", "--run", "one", "--format", "gguf", folder_ / "one.gguf"});
  EXPECT_EQ(gguf.code, 3);
  EXPECT_THAT(gguf.err, HasSubstr(" would have instead:\n  mixtral: squared_relu = false, not true and 1 more\n"));
  EXPECT_THAT(gguf.err, Not(HasSubstr("llama.cpp has no architecture"))) << "types without such files are not near";
  EXPECT_LE(std::ranges::count(gguf.err, '\n'), 6) << gguf.err;
  // A model that is a Mixtral but for what llama.cpp lacks: its type comes first.
  train_small("window", {"--ranks", "1", "--window-size", "8,0"});
  const Said window = run({"export", "--run", "window", "--format", "gguf", folder_ / "window.gguf"});
  EXPECT_EQ(window.code, 3);
  EXPECT_THAT(window.err, HasSubstr(" would have instead:\n  mixtral: llama.cpp's model of type llama cannot be"));
}

TEST_F(ConvertCommands, DtypesAreKeptOrChosen) {
  ASSERT_EQ(run({"import", kGolden / "gpt2", "--run", "gpt2"}).code, 0);
  const Said said = run({"export", "--run", "gpt2", folder_ / "narrow", "--dtype", "bfloat16"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("6256 elements (BF16), 12.2 KiB"));
}

TEST_F(ConvertCommands, MtpModulesCanBeLeftOut) {
  train_small("mtp", {"--ranks", "1", "--mtp-num-layers", "1"});
  for (const std::string format : {"hf", "gguf", "megatron"}) {
    const fs::path out = folder_ / ("mtp-" + format);
    const Said refused = run({"export", "--run", "mtp", "--format", format, out});
    EXPECT_EQ(refused.code, 3) << format;
    EXPECT_THAT(refused.err, HasSubstr("--without-mtp")) << format;
    EXPECT_FALSE(fs::exists(out)) << format;
    EXPECT_THAT(done({"export", "--run", "mtp", "--format", format, out, "--without-mtp"}).out,
                HasSubstr(" more: of multi-token prediction, left out as asked"));
  }
  train_small("one", {"--ranks", "1"});
  EXPECT_THAT(run({"export", "--run", "one", "--without-mtp", folder_ / "one"}).err, HasSubstr("leave it out"));
}

TEST_F(ConvertCommands, MegatronCheckpointsStartRunsWithAGivenTokenizer) {
  train_small("one", {"--ranks", "1"});
  const std::string tokenizer = folder_ / "runs/one/tokenizer.json", checkpoint = folder_ / "megatron";
  done({"export", "--run", "one", "--format", "megatron", checkpoint});
  train("two", {"--ranks", "1", "--init-from", checkpoint, "--tokenizer", tokenizer});
  EXPECT_THAT(run({"import", checkpoint, "--run", "bare"}).err, HasSubstr("give it with --tokenizer FILE"));
  EXPECT_THAT(done({"import", checkpoint, "--run", "three", "--tokenizer", tokenizer}).out,
              HasSubstr("vocabulary   300 entries\n"));
  EXPECT_EQ(run({"generate", "the ", "--run", "three", "--greedy", "--max-tokens", "12"}).out,
            run({"generate", "the ", "--run", "one", "--greedy", "--max-tokens", "12"}).out);
}

// Sets the first value of the tensor in a safetensors file to NaN, for any dtype.
void spoil(const fs::path& path, const std::string& name) {
  std::string bytes = read_file(path);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  const Json tensor = Json::parse(bytes.substr(sizeof size, size)).at(name);
  const std::string dtype = tensor["dtype"];
  const size_t width = dtype == "F32" ? 4 : 2;
  const size_t first = sizeof size + size + tensor["data_offsets"][0].get<size_t>();
  bytes.replace(first + width - 2, 2, "\xFF\xFF");
  write_text(path, bytes);
}

TEST_F(ConvertCommands, ImportWarnsOfNonFiniteValues) {
  train_small("one", {"--ranks", "1"});
  export_to("one", "hf");
  EXPECT_EQ(run({"import", folder_ / "hf", "--run", "whole"}).err, "");
  for (const char* name : {"model.layers.1.self_attn.o_proj.weight", "model.norm.weight"})
    spoil(folder_ / "hf/model.safetensors", name);
  const Said said = done({"import", folder_ / "hf", "--run", "spoilt"});
  EXPECT_THAT(said.err, AllOf(HasSubstr("warning: 2 values of the weights are NaN or infinite, in 2 tensors"),
                              ::testing::AnyOf(HasSubstr("model.norm.weight"), HasSubstr("self_attn.o_proj.weight"))));
}

// No update is made with gradients of such weights, whatever the learning rate.
TEST_F(ConvertCommands, TrainingNamesNonFiniteWeights) {
  train_small("one", {"--ranks", "1"});
  export_to("one", "hf");
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"})
    spoil(folder_ / "hf/model.safetensors", name);
  const Said said = run({"train", "--run", "tuned", "--init-from", folder_ / "hf", "--data", folder_ / "text.txt",
                         "--device", "cpu", "--seq-length", "16", "--micro-batch-size", "1", "--global-batch-size", "4",
                         "--train-iters", "20", "--mesh", "shard=2,expert=2"});
  EXPECT_EQ(said.code, 6) << said.err;
  const std::string warning = cat("2 values of the weights of ", (folder_ / "hf").string(),
                                  " are NaN or infinite, in 2 tensors, the first of them embedding.weight");
  EXPECT_THAT(said.err, AllOf(HasSubstr("warning: " + warning), HasSubstr("The weights themselves are not finite: "),
                              HasSubstr(cat(", as they came from init_from = ", (folder_ / "hf").string(),
                                            ": start from weights that are finite")),
                              Not(HasSubstr("smaller --lr"))));
  EXPECT_THAT(file("runs/tuned/train.log"), HasSubstr(warning));
  done({"import", folder_ / "hf", "--run", "spoilt"});
  for (const bool json : {false, true}) {
    std::vector<std::string> args = {"eval", "--run", "spoilt", "--data", folder_ / "text.txt"};
    if (json) args.emplace_back("--json");
    const Said measured = run(args);
    EXPECT_EQ(measured.code, 6);
    EXPECT_EQ(measured.out, "");
    EXPECT_THAT(measured.err, HasSubstr(" is nan: weights are not finite: embedding.weight: 1 NaN"));
  }
}

// Experts are created from a dense model; each rank reads whole tensors, and no value is counted twice.
TEST_F(ConvertCommands, UpcyclingNamesNonFiniteModels) {
  train_dense("one", {"--ranks", "1"});
  export_to("one", "hf");
  for (const char* name : {"model.layers.0.mlp.down_proj.weight", "model.norm.weight"})
    spoil(folder_ / "hf/model.safetensors", name);
  done({"import", folder_ / "hf", "--run", "spoilt"});
  std::vector<std::string> args = {"train", "--run", "experts", "--upcycle", "spoilt", "--num-experts", "4"};
  args.insert(args.end(), {"--data", folder_ / "text.txt", "--device", "cpu", "--seq-length", "16"});
  args.insert(args.end(), {"--micro-batch-size", "1", "--global-batch-size", "4", "--train-iters", "20"});
  args.insert(args.end(), {"--mesh", "shard=2,expert=2"});
  const Said said = run(args);
  EXPECT_EQ(said.code, 6) << said.err;
  EXPECT_THAT(said.err, AllOf(HasSubstr("warning: 2 values of the weights of "),
                              HasSubstr(" are NaN or infinite, in 2 tensors, the first of them final_norm.weight"),
                              HasSubstr(", as they came from upcycle = spoilt: start from weights that are finite")));
}

TEST_F(ConvertCommands, AModelWithoutATokenizerGetsNoneFromAnotherText) {
  train_dense("one", {"--ranks", "1"});
  export_to("one", "hf");
  for (const auto& entry : fs::directory_iterator(folder_ / "hf"))
    if (entry.path().filename().string().starts_with("tokenizer")) fs::remove(entry.path());
  done({"import", folder_ / "hf", "--run", "mute"});
  for (const std::string key : {"init_from", "upcycle"}) {
    std::vector<std::string> args = {"train", "--run", "new", "--" + (key == "upcycle" ? key : "init-from"), "mute"};
    args.insert(args.end(), {"--data", folder_ / "text.txt", "--device", "cpu"});
    const Said said = run(args);
    EXPECT_EQ(said.code, 3);
    EXPECT_THAT(said.err, HasSubstr(key + " = mute: the model has no tokenizer that Witan can read; give the one that "
                                          "it was trained with: --tokenizer FILE"));
  }
}

// Weights of older checkpoints, by the names that `generate` and `eval` accept.
TEST_F(ConvertCommands, CheckpointsAreExportedAndStartedFromByName) {
  train_small("base", {"--ranks", "1", "--save-interval", "1", "--keep-last", "9", "--keep-best", "1"});
  const auto exported = [&](const std::string& name, const std::string& out) {
    export_to(name, out);
    return file(out + "/model.safetensors");
  };
  const std::string first = exported("base@1", "first"), last = exported("base@2", "last");
  EXPECT_NE(first, last);
  EXPECT_EQ(exported("base", "newest"), last);
  const std::string best = exported("base@best", "best");
  EXPECT_TRUE(best == first || best == last);
  const Said none = run({"export", "--run", "base@7", folder_ / "none"});
  EXPECT_EQ(none.code, 5);
  EXPECT_THAT(none.err, HasSubstr("has no checkpoint 7"));
  // At a learning rate of 0 no step changes weights, so the new run keeps those that it started from.
  const std::vector<std::string> still = {"--lr", "0", "--min-lr", "0", "--weight-decay", "0", "--ranks", "1"};
  const auto begun_from = [&](const std::string& source, const std::string& name) {
    std::vector<std::string> args = {"--init-from", source};
    args.insert(args.end(), still.begin(), still.end());
    train(name, args);
    return exported(name, name + "-hf");
  };
  EXPECT_EQ(begun_from("base@1", "one"), first);
  EXPECT_EQ(begun_from(folder_ / "runs/base@1", "path"), first);
  EXPECT_EQ(begun_from("base@best", "best-of"), best);
  const Said missing = run({"train", "--run", "new", "--init-from", "base@7", "--data", folder_ / "text.txt"});
  EXPECT_EQ(missing.code, 5);
  EXPECT_THAT(missing.err, HasSubstr("has no checkpoint 7"));
}

// Generation and evaluation need the text of tokens.
TEST_F(ConvertCommands, ARunWithoutATokenizerSaysHowToGetOne) {
  train_small("one", {"--ranks", "1"});
  done({"export", "--run", "one", "--format", "megatron", folder_ / "megatron"});
  done({"import", folder_ / "megatron", "--run", "bare"});
  const std::vector<std::vector<std::string>> commands = {{"generate", "the ", "--run", "bare"},
                                                          {"eval", "--run", "bare", "--data", folder_ / "text.txt"}};
  for (const auto& command : commands) {
    const Said said = run(command);
    EXPECT_EQ(said.code, 5) << command[0];
    EXPECT_THAT(said.err, AllOf(HasSubstr("bare has no tokenizer"), HasSubstr("as Megatron-LM's checkpoints never do"),
                                HasSubstr("witan import SOURCE --run NEW --tokenizer FILE")));
  }
}

TEST_F(ConvertCommands, NamesFoldersThatAreNotModels) {
  EXPECT_THAT(run({"import", folder_ / "missing.gguf", "--run", "r"}).err, HasSubstr("missing.gguf does not exist"));
  EXPECT_THAT(run({"import", folder_ / "text.txt", "--run", "r"}).err, HasSubstr("does not begin as a GGUF file does"));
  write_text(folder_ / "adapters/adapter_config.json", "{}");
  EXPECT_THAT(run({"import", folder_ / "adapters", "--run", "r"}).err, HasSubstr("holds adapters alone"));
  EXPECT_THAT(run({"train", "--run", "r", "--init-from", folder_ / "adapters"}).err,
              HasSubstr("set init_base to the base model"));
}

}  // namespace
}  // namespace witan::test
