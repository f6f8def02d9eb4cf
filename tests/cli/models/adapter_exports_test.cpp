// Exports of runs with adapters: merged, or alone for PEFT.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/small_runs.h"
#include "convert/convert_support.h"
#include "witan/base/json.h"

namespace witan::test {
namespace {

using ::testing::HasSubstr;
using testing::OwnTensor;
using testing::OwnTensors;
using testing::tensors_in;

class AdapterExports : public SmallRuns {
 protected:
  std::string export_to(const std::string& name, const std::string& out) const {
    return done({"export", "--run", name, "--format", "hf", folder_ / out}).out;
  }
  // Exports the run as `name`, and adds tensors; `config` changes config.json.
  void export_changed(const std::string& name, const std::vector<std::string>& how,
                      const std::function<void(Json&)>& config, const std::function<void(OwnTensors&)>& tensors) const {
    std::vector<std::string> args = {"export", "--run", name, "--format", "hf", folder_ / name};
    args.insert(args.end(), how.begin(), how.end());
    done(args);
    Json json = Json::parse(file(name + "/config.json"));
    config(json);
    write_text(folder_ / name / "config.json", json.dump());
    OwnTensors all = tensors_in(folder_ / name);
    tensors(all);
    testing::write_tensors(folder_ / name / kHfWeights, all);
  }
  // Imports the folder of that name, trains adapters, and exports them.
  Said adapters_of_folder(const std::string& name) const {
    done({"import", folder_ / name, "--run", name + "-imported"});
    train(name + "-tuned", {"--init-from", name + "-imported", "--lora-rank", "2", "--ranks", "1"});
    return run({"export", "--run", name + "-tuned", "--format", "peft", folder_ / (name + "-adapters")});
  }
};

// Trains adapters on a run's weights and exports them merged and separately.
TEST_F(AdapterExports, AdaptersAreTrainedOnARunAndExportedMergedOrSeparately) {
  train_small("base", {"--ranks", "1"});
  train("adapted", {"--init-from", "base", "--lora-rank", "4", "--lr", "0.05", "--mesh", "shard=2,expert=2"});
  EXPECT_THAT(run({"export", "--run", "base", "--format", "peft", folder_ / "none"}).err, HasSubstr("has no adapters"));
  EXPECT_THAT(run({"export", "--run", "base", "--merge-lora", folder_ / "none"}).err, HasSubstr("lora_rank = 0"));
  EXPECT_THAT(run({"export", "--run", "adapted", "--format", "peft", "--merge-lora", folder_ / "none"}).err,
              HasSubstr("leave one of them out"));
  const Said alone = run({"export", "--run", "adapted", "--format", "peft", folder_ / "adapters"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("adapters     12 of rank 4, to be loaded on the base model"));
  EXPECT_EQ(Json::parse(file("adapters/adapter_config.json"))["r"], 4);
  EXPECT_THAT(export_to("adapted", "merged"), HasSubstr("merged: W + (alpha / rank) B A in float32, rounded once"));
  ASSERT_EQ(run({"import", folder_ / "merged", "--run", "merged"}).code, 0);
  const auto text = [&](const std::string& name) {
    return run({"generate", "the ", "--run", name, "--greedy", "--max-tokens", "12"}).out;
  };
  EXPECT_EQ(text("merged"), text("adapted"));
  export_to("base", "base-hf");
  EXPECT_NE(file("merged/model.safetensors"), file("base-hf/model.safetensors"));
  // A model with adapters differs from one without.
  EXPECT_THAT(run({"train", "--run", "lost", "--init-from", "adapted", "--lora-rank", "0", "--data",
                   folder_ / "text.txt", "--device", "cpu"})
                  .err,
              HasSubstr("has adapters, and the new model has none: merge them first"));
}

// Over a base in 4 bits: resumed to the bit, generated from, evaluated and merged to what was trained, from checkpoints
// of several ranks, and a base for the next run.
TEST_F(AdapterExports, AdaptersOfABaseIn4Bits) {
  train("base", words_in("--hidden-size 64 --ffn-hidden-size 64 --num-layers 2 --num-attention-heads 4 --ranks 1 "
                         "--tokenizer-vocab-size 300"));
  const auto tune = [&](const std::string& name, const std::string& from, const std::string& more) {
    std::vector<std::string> args = words_in(
        "--lora-rank 4 --lr 0.02 --seq-length 32 --micro-batch-size 2 --global-batch-size 4 --eval-iters 1 --device "
        "cpu "
        "--sample-tokens 0 --held-out-fraction 0.2",
        {"train", "--run", name, "--data", folder_ / "text.txt", "--init-from", from});
    for (const std::string& word : words_in(more)) args.push_back(word);
    const Said ran = done(args);
    return ran.out + ran.err;
  };
  const std::string said =
      tune("small", "base",
           "--frozen-format nf4 --mesh shard=2,expert=2 --train-iters 4 --data-parallel-sharding-strategy "
           "optim_grads_params");
  EXPECT_THAT(said, HasSubstr("kept as nf4 in"));
  EXPECT_THAT(said, ::testing::ContainsRegex("frozen +nf4 with an error of [0-9.]+ % \\(root mean square\\)"));

  // A run of the same steps that stops in between.
  tune("stopped", "base", "--frozen-format nf4 --ranks 1 --train-iters 2 --lr-decay-iters 4 --lr-warmup-iters 0");
  tune("straight", "base", "--frozen-format nf4 --ranks 1 --train-iters 4 --lr-decay-iters 4 --lr-warmup-iters 0");
  done({"train", "--run", "stopped", "--train-iters", "4"});
  EXPECT_EQ(file("runs/stopped/checkpoints/step-4/shard-00000.safetensors"),
            file("runs/straight/checkpoints/step-4/shard-00000.safetensors"));

  const auto loss_of = [&](const std::string& name) {
    const std::string out = done({"eval", "--run", name, "--data", folder_ / "text.txt"}).out;
    return std::stod(out.substr(out.find("loss") + 4));
  };
  export_to("small", "merged");
  done({"import", folder_ / "merged", "--run", "merged"});
  EXPECT_NEAR(loss_of("merged"), loss_of("small"), 1e-4);
  EXPECT_NE(loss_of("base"), loss_of("small"));
  const auto text = [&](const std::string& name) {
    return done({"generate", "the ", "--run", name, "--greedy", "--max-tokens", "12"}).out;
  };
  EXPECT_EQ(text("merged"), text("small"));
  const Said alone = run({"export", "--run", "small", "--format", "peft", folder_ / "adapters"});
  EXPECT_EQ(alone.code, 0) << alone.err;

  // A run with these adapters on the same codes.
  EXPECT_THAT(tune("next", "small", "--ranks 1 --train-iters 1"), HasSubstr("nf4 without a difference"));
  EXPECT_THAT(run({"train", "--run", "kept", "--init-from", "base", "--lora-rank", "4", "--frozen-format", "nf4",
                   "--data", folder_ / "text.txt", "--device", "cpu", "--mesh", "shard=2",
                   "--data-parallel-sharding-strategy", "optim_grads_params", "--reshard-after-forward", "false"})
                  .err,
              HasSubstr("reshard_after_forward = false keeps every layer's matrices decoded"));
}

// With experts, and with magnitudes. A learning rate far below the last bit keeps the adapters.
TEST_F(AdapterExports, FoldersOfAdaptersAreStartedFromAndWrittenAgain) {
  train_small("experts", {"--ranks", "1"});
  train_dense("dense", {"--ranks", "1"});
  for (const auto& [base, more] :
       {std::pair<std::string, Words>{"experts", {}}, {"dense", {"--lora-use-dora", "true"}}}) {
    SCOPED_TRACE(base);
    const std::string hf = base + "-hf", first = base + "-first", second = base + "-second";
    export_to(base, hf);
    Words how = {"--init-from", folder_ / hf, "--lora-rank", "4", "--lora-alpha", "6", "--lr", "0.05", "--ranks", "1"};
    how.insert(how.end(), more.begin(), more.end());
    train(first, how);
    done({"export", "--run", first, "--format", "peft", folder_ / first});
    train(second, {"--init-from", folder_ / first, "--lr", "1e-30", "--mesh", "shard=2"});
    done({"export", "--run", second, "--format", "peft", folder_ / second});
    EXPECT_TRUE(tensors_in(folder_ / first / "adapter_model.safetensors") ==
                tensors_in(folder_ / second / "adapter_model.safetensors"));
    EXPECT_EQ(file(first + "/adapter_config.json"), file(second + "/adapter_config.json"));
    const Json ledger = Json::parse(file(cat("runs/", second, "/adapters-ledger.json")));
    EXPECT_EQ(ledger["source"].size(), tensors_in(folder_ / first / "adapter_model.safetensors").size());
  }
}

TEST_F(AdapterExports, TheBaseModelOfAdaptersIsNamedByThemOrByTheCall) {
  train_dense("base", {"--ranks", "1"});
  export_to("base", "hf");
  train("tuned", {"--init-from", folder_ / "hf", "--lora-rank", "2", "--ranks", "1"});
  done({"export", "--run", "tuned", "--format", "peft", folder_ / "adapters"});
  Json config = Json::parse(file("adapters/adapter_config.json"));
  const auto begin = [&](const char* base, const Words& more) {
    config["base_model_name_or_path"] = base;
    write_text(folder_ / "adapters/adapter_config.json", config.dump());
    Words args = {"config", "show", "--json", "--run", "new", "--init-from", folder_ / "adapters"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  EXPECT_THAT(begin("someone/else", {}).err, HasSubstr("names; set init_base to where it is here"));
  for (const Said& said : {begin("../hf", {}), begin("someone/else", {"--init-base", folder_ / "hf"})}) {
    EXPECT_EQ(said.code, 0) << said.err;
    EXPECT_EQ(Json::parse(said.out)["lora_rank"]["value"], 2);
  }
  EXPECT_THAT(begin("../hf", {"--lora-alpha", "7"}).err, HasSubstr("lora_alpha = 7"));
  done({"import", folder_ / "hf", "--run", "imported"});
  EXPECT_EQ(begin("imported", {}).code, 0);
  EXPECT_THAT(begin("base", {}).err, HasSubstr("is a run that was not imported"));
  EXPECT_THAT(begin("tuned", {}).err, HasSubstr("set init_base"));
}

// Published folders of Gemma 4 hold projections of layers that borrow keys and values, which are kept beside the
// model.
TEST_F(AdapterExports, TensorsThatNoProgramReadsAreNoHindrance) {
  train("gemma", words_in("--ranks 1 --num-layers 4 --hidden-size 32 --ffn-hidden-size 32 --tokenizer-vocab-size 300 "
                          "--num-experts 0 --num-attention-heads 4 --num-query-groups 2 "
                          "--num-kv-shared-layers 2 --window-size 5,0 --window-attn-skip-freq 2 "
                          "--kv-channels 10 --window-kv-channels 6 --rotary-proportional true "
                          "--rotary-percent 0.5 --window-rotary-percent 1 --qk-layernorm true --v-l2-norm true "
                          "--softmax-scale 1 --embedding-multiplier 5.656854249492381 --swiglu false --geglu true "
                          "--gelu-tanh true --norm-placement both --layer-scalar true"));
  export_changed(
      "gemma", {"--architecture", "gemma4_text"}, [](Json&) {},
      [](OwnTensors& all) {
        all["model.layers.2.self_attn.k_proj.weight"] = all.at("model.layers.0.self_attn.k_proj.weight");
      });
  const Said exported = adapters_of_folder("gemma");
  ASSERT_EQ(exported.code, 0) << exported.err;
  const OwnTensors adapters = tensors_in(folder_ / "gemma-adapters/adapter_model.safetensors");
  EXPECT_TRUE(adapters.contains("base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"));
  EXPECT_FALSE(adapters.contains("base_model.model.model.layers.2.self_attn.k_proj.lora_A.weight"));
}

// Text decoders in objects of their own, and, as published Qwen2-VL, beside the towers under a text model's names.
TEST_F(AdapterExports, ModelsThatReadImagesAreRefused) {
  train_dense("qwen", {"--ranks", "1", "--add-qkv-bias", "true"});
  const OwnTensor tower{{"", "F32", Shape{2}}, std::vector<std::byte>(8)};
  export_changed(
      "qwen", {"--architecture", "qwen2_5_vl_text"},
      [](Json& config) {
        config["model_type"] = "qwen2_5_vl";
        config["vision_config"] = Json::object();
      },
      [&](OwnTensors& all) { all["visual.norm.weight"] = tower; });
  train_dense("llava", {"--ranks", "1"});
  export_changed(
      "llava", {"--architecture", "llama"},
      [](Json& config) {
        config = Json{{"model_type", "llava"}, {"text_config", config}};
      },
      [&](OwnTensors& all) {
        OwnTensors renamed;
        for (auto& [name, tensor] : all) renamed.emplace("language_model." + name, tensor);
        all = std::move(renamed);
        all["vision_tower.norm.weight"] = tower;
      });
  for (const char* name : {"qwen", "llava"}) {
    const Said refused = adapters_of_folder(name);
    EXPECT_EQ(refused.code, 3) << name;
    EXPECT_THAT(refused.err,
                HasSubstr("--format peft: the run is a part of a model that reads images, whose modules have "
                          "other names in PEFT: merge the adapters with --format hf --merge-lora"));
    done({"export", "--run", cat(name, "-tuned"), "--merge-lora", folder_ / cat(name, "-merged")});
  }
}

}  // namespace
}  // namespace witan::test
