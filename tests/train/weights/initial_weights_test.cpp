// Runs that start from other runs' weights compute the same values in every layout.
#include "witan/train/weights/initial_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/ledger.h"
#include "witan/tensor/host.h"
#include "witan/train/config/saved_config.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;
using ::testing::HasSubstr;
using testing::laid_out;
using testing::LaidOut;
using testing::with_rank_engines;

const fs::path kMixtral = fs::path(WITAN_SOURCE_DIR) / "tests/golden/convert/mixtral";

RunConfig source_config(const LaidOut& layout = {}) {
  RunConfig config;
  config.model.dtype = "float64";
  config.model.num_layers = 2;
  config.model.hidden_size = 16;
  config.model.vocab_size = 61;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.mlp.ffn_hidden_size = 24;
  config.model.moe.num_experts = 4;
  config.model.moe.moe_router_score_function = "sigmoid";
  config.model.moe.moe_router_enable_expert_bias = true;
  config.data.seq_length = 16;
  config.train.train_iters = 30;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 4;
  config.train.sample_tokens = 0;
  return laid_out(config, layout);
}

class InitialWeightsOf : public ::testing::Test {
 protected:
  // Trains a model for two steps, saves it as the run "source", and returns its loss on the next batch.
  double save_source(const RunConfig& config) {
    double loss = 0;
    with_rank_engines(config, [&](Stream& stream, const Groups& groups, Engine& engine, int rank) {
      const auto batches = [&](int64_t step) { return testing::own_batches(config, groups.layout(), rank, step); };
      for (int64_t step = 1; step <= 2; ++step) engine.step(batches(step), step, step - 1);
      CheckpointContent content;
      content.step = 2;
      content.tensors = engine.state();
      content.files = {{"config.toml", config_to_save(config)}, {"tokenizer.json", "{}"}};
      save_checkpoint(groups.host(), stream, folder_ / "source/checkpoints", content);
      const double found = engine.step(batches(0), 3, 2).loss;
      if (rank == 0) loss = found;
    });
    return loss;
  }
  RunConfig new_config(const LaidOut& layout = {}) const {
    RunConfig config = source_config(layout);
    config.train.init_from = "source";
    config.train.runs_folder = folder_.path();
    return config;
  }
  static double first_loss_of(const RunConfig& config) {
    double loss = 0;
    with_rank_engines(config, [&](Stream& stream, const Groups& groups, Engine& engine, int rank) {
      InitialWeights(config).fill(stream, engine.state(), engine.parameters());
      const double found = engine.step(testing::own_batches(config, groups.layout(), rank, 0), 1, 0).loss;
      if (rank == 0) loss = found;
    });
    return loss;
  }

  TempFolder folder_;
};

const std::vector<LaidOut> kNewLayouts = {{""},
                                          {"replicate=2,expert=2"},
                                          {"tensor=2,expert=1,expert_tensor=2"},
                                          {"pipeline=2"},
                                          {"shard=2,context=2,expert=4", "optim_grads_params"}};

TEST_F(InitialWeightsOf, ARunAreUsedInEveryLayout) {
  const double expected = save_source(source_config({"replicate=2,expert=2"}));
  for (const LaidOut& layout : kNewLayouts)
    EXPECT_NEAR(first_loss_of(new_config(layout)), expected, 1e-9 * expected) << testing::described(layout);
}

// MTP modules are copied like layers, or initialised if the source has none.
TEST(OpenWeights, HubNamesExplainHowToFetchThem) {
  std::vector<std::string> warnings;
  EXPECT_THAT(message_of<CheckpointError>([&] { open_weights("Nobody/none-0.6B", "runs", "init_from: ", warnings); }),
              ::testing::HasSubstr("`witan data fetch --model Nobody/none-0.6B`"));
}

TEST_F(InitialWeightsOf, AModelWithMultiTokenPrediction) {
  RunConfig source = source_config({"pipeline=2"});
  source.model.mtp_num_layers = 2;
  const double expected = save_source(source);
  for (const LaidOut& layout : kNewLayouts) {
    RunConfig config = new_config(layout);
    config.model.mtp_num_layers = 2;
    EXPECT_NEAR(first_loss_of(config), expected, 1e-9 * expected) << testing::described(layout);
  }
  EXPECT_THAT(message_of<CheckpointError>([&] { InitialWeights{new_config()}; }),
              HasSubstr("holds \"mtp.0.block.attention.k_proj.weight\" [8, 16], which the new model has no place for: "
                        "it would be lost; set mtp_num_layers = 2"));
}

TEST_F(InitialWeightsOf, AModelWithoutMultiTokenPredictionInitialisesIt) {
  const double expected = save_source(source_config());
  RunConfig config = new_config();
  config.model.mtp_num_layers = 1;
  EXPECT_NEAR(first_loss_of(config), expected, 1e-9 * expected);
}

// The history of tensors' magnitudes (FP8) is not copied from the source.
TEST_F(InitialWeightsOf, DelayedScalesAreNotCopied) {
  RunConfig source = source_config();
  source.model.dtype = "float32";
  source.model.mlp.ffn_hidden_size = 32;
  RunConfig config = new_config();
  config.model = source.model;
  source.model.attention.num_query_groups = source.model.attention.num_attention_heads = 1;
  config.model.attention = source.model.attention;
  source.model.fp8_format = "hybrid";
  source.model.fp8_recipe = "delayed";
  const double expected = save_source(source);
  EXPECT_NEAR(first_loss_of(config), expected, 5e-3 * expected);
  config.model.fp8_format = "e4m3";
  config.model.fp8_recipe = "delayed";
  EXPECT_NEAR(first_loss_of(config), expected, 5e-3 * expected);
}

// The number of padding rows of the vocabulary may differ.
TEST_F(InitialWeightsOf, PaddingRowsAreAddedOrRemoved) {
  RunConfig source = source_config();
  source.model.make_vocab_size_divisible_by = 4;
  const double expected = save_source(source);
  for (const int64_t padding : {1, 4, 64}) {
    RunConfig config = new_config({"tensor=2,expert=1,expert_tensor=2"});
    config.model.make_vocab_size_divisible_by = padding;
    EXPECT_NEAR(first_loss_of(config), expected, 1e-9 * expected) << padding;
  }
}

// A bfloat16 run takes rounded values and unrounded masters.
TEST_F(InitialWeightsOf, MastersAreTheSourcesWeights) {
  RunConfig source = source_config();
  source.model.dtype = "float32";
  save_source(source);
  RunConfig config = new_config();
  config.model.dtype = "bfloat16";
  std::vector<std::string> warnings;
  const auto weights = open_weights("source", folder_.path(), "", warnings);
  with_rank_engines(config, [&](Stream& stream, const Groups&, Engine& engine, int) {
    InitialWeights(config).fill(stream, engine.state(), engine.parameters());
    int masters = 0;
    for (const StateTensor& state : engine.state()) {
      if (state.kind != StateTensor::Kind::master) continue;
      ++masters;
      const std::string name = state.name.substr(std::string("master/").size());
      std::vector<double> expected(static_cast<size_t>(state.local.elements()));
      weights->read(name, 0, state.local.elements(), expected.data());
      std::vector<float> found;
      for_joined_bytes(state.local, state.remainder, [&](const std::byte* bytes, int64_t count) {
        const size_t before = found.size();
        found.resize(before + static_cast<size_t>(count) / sizeof(float));
        std::memcpy(found.data() + before, bytes, static_cast<size_t>(count));
      });
      EXPECT_EQ(std::vector<double>(found.begin(), found.end()), expected) << name;
    }
    EXPECT_GT(masters, 10);
  });
}

TEST_F(InitialWeightsOf, AHuggingFaceFolderAreTheSameInEveryLayout) {
  RunConfig config = source_config();
  config.model = HfWeights(kMixtral).model();
  config.model.dtype = "float64";
  config.train.init_from = kMixtral;
  const double alone = first_loss_of(config);
  EXPECT_GT(alone, 1);
  for (const LaidOut& layout : kNewLayouts)
    if (layout.mesh.find("context") == std::string::npos) {  // a window of odd length
      EXPECT_NEAR(first_loss_of(laid_out(config, layout)), alone, 1e-9 * alone) << testing::described(layout);
    }
}

TEST_F(InitialWeightsOf, RefusalsOfAnotherModelNameTheKey) {
  save_source(source_config());
  const auto error = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig config = new_config();
    change(config);
    return message_of<ConfigError>([&] { InitialWeights weights(config); });
  };
  EXPECT_THAT(error([](RunConfig& config) { config.model.num_layers = 3; }), HasSubstr("num_layers = 3, not 2"));
  EXPECT_THAT(error([](RunConfig& config) { config.model.attention.rotary_base = 500; }),
              HasSubstr("rotary_base = 500.0, not 10000.0"));
  EXPECT_THAT(error([](RunConfig& config) { config.model.moe.moe_router_topk = 1; }),
              HasSubstr("leave the key out, and the run takes the source's"));
  RunConfig nowhere = new_config();
  nowhere.train.init_from = "nowhere";
  EXPECT_THAT(message_of<CheckpointError>([&] { InitialWeights weights(nowhere); }),
              HasSubstr("init_from = nowhere: there is neither"));
  RunConfig both = new_config();
  both.train.upcycle = "source";
  EXPECT_THAT(message_of<ConfigError>([&] { resolve(both, {}); }), HasSubstr("both say where the first weights come"));
}

TEST_F(InitialWeightsOf, ARunIncludeItsOtherFiles) {
  fs::create_directories(folder_ / "source/hf");
  write_file_atomically(folder_ / "source/hf/config.json", "{}");
  write_file_atomically(folder_ / "source/ledger.json", "[]");
  save_source(source_config());
  std::vector<std::string> warnings;
  copy_companions_of(*open_weights("source", folder_.path(), "", warnings), folder_ / "new");
  EXPECT_EQ(read_file(folder_ / "new/hf/config.json"), "{}");
  EXPECT_EQ(read_file(folder_ / "new/ledger.json"), "[]");
  copy_companions_of(*open_weights(kMixtral, folder_.path(), "", warnings), folder_ / "other");
  EXPECT_EQ(read_file(folder_ / "other/hf/config.json"), read_file(kMixtral / "config.json"));
}

}  // namespace
}  // namespace witan
