// Models of Megatron-Core compute the same in Witan and are exported unchanged
// (tests/golden/convert_megatron/make_golden.py, which also loads exports into Megatron-Core).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "convert/convert_support.h"
#include "model/model_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/import.h"
#include "witan/convert/megatron/megatron_export.h"
#include "witan/convert/megatron/megatron_torch_writer.h"
#include "witan/convert/megatron/megatron_weights.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using test::TempFolder;
using testing::Alone;
using ::testing::HasSubstr;
using testing::OwnTensors;
using testing::Rank;
using testing::tensors_in;

fs::path megatron_golden(const std::string& model) {
  return fs::path(WITAN_SOURCE_DIR) / "tests/golden/convert_megatron" / model;
}

// All weights of a source by Witan's names.
std::map<std::string, std::vector<double>> values_of(WeightSource& source) {
  std::map<std::string, std::vector<double>> all;
  for (const auto& [name, shape] : source.weights()) {
    all[name].resize(static_cast<size_t>(shape.elements()));
    source.read(name, 0, shape.elements(), all[name].data());
  }
  return all;
}

class MegatronModels : public ::testing::TestWithParam<std::string> {
 protected:
  TempFolder folder_;

  Checkpoint imported(const char* format) {
    MegatronWeights weights(megatron_golden(GetParam()) / format);
    import_weights(weights, folder_ / format, {}, Json::object());
    return open_checkpoint(folder_ / (std::string(format) + "/step-0"));
  }
};

TEST_P(MegatronModels, ComputeTheSameLogits) {
  const OwnTensors expected = tensors_in(megatron_golden(GetParam()) / "expected.safetensors");
  std::vector<int64_t> ids(12);
  std::vector<float> logits(12 * 40);
  std::memcpy(ids.data(), expected.at("input_ids").bytes.data(), ids.size() * sizeof(int64_t));
  std::memcpy(logits.data(), expected.at("logits").bytes.data(), logits.size() * sizeof(float));
  const Checkpoint checkpoint = imported("torch_dist");
  MegatronWeights weights(megatron_golden(GetParam()) / "torch_dist");
  ModelConfig config = weights.model();
  if (config.attention.learned_positions()) config.attention.max_position_embeddings = weights.positions();
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, config, 0, alone);
  std::vector<StateTensor> state;
  for (const Parameter* parameter : model.parameters())
    state.push_back({parameter->name(), parameter->value(), parameter->global_shape(), parameter->region()});
  for (const Buffer* buffer : model.buffers())
    if (checkpoint.manifest.tensors.contains(buffer->name()))
      state.push_back({.name = buffer->name(),
                       .local = buffer->value(),
                       .global_shape = buffer->spec().shape,
                       .region = {0, buffer->spec().shape.elements()},
                       .kind = StateTensor::Kind::buffer});
  load_tensors(checkpoint, state);
  std::vector<int32_t> tokens(ids.begin(), ids.end()), positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const Shape one{1, 12};
  ModelInput input{rank.tensor(one, tokens),
                   {rank.tensor(one, positions), rank.tensor(one, std::vector<int32_t>(ids.size()))}};
  input.dropping = Dropping::never;
  const std::vector<double> found = testing::logits_of(rank.stream, model, input);
  ASSERT_EQ(found.size(), logits.size());
  double largest = 0, worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(logits[i])));
    worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - found[i]));
  }
  EXPECT_LE(worst, 1e-5 * largest);
}

TEST_P(MegatronModels, AreTheSameInBothFormats) {
  MegatronWeights dist(megatron_golden(GetParam()) / "torch_dist"), legacy(megatron_golden(GetParam()) / "legacy");
  EXPECT_EQ(values_of(dist), values_of(legacy));
}

TEST_P(MegatronModels, AreExportedUnchanged) {
  MegatronWeights source(megatron_golden(GetParam()) / "torch_dist");
  CheckpointWeights weights(imported("torch_dist"), source.model());
  fs::create_directory(folder_ / "out");
  const Ledger ledger = export_megatron(weights, {{}, source.positions()}, folder_ / "out");
  EXPECT_EQ(ledger.source.size(), weights.weights().size());
  MegatronWeights again(folder_ / "out");
  EXPECT_EQ(values_of(again), values_of(source));
  EXPECT_THAT(differences(again.model(), source.model()), ::testing::IsEmpty());
}

// The golden "dense" model with one changed file.
class MegatronFolders : public ::testing::Test {
 protected:
  MegatronFolders() { fs::copy(megatron_golden("dense"), folder_ / "dense", fs::copy_options::recursive); }
  static std::string refusal(const fs::path& folder) {
    try {
      const MegatronWeights weights(folder);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }
  fs::path dist() const { return folder_ / "dense/torch_dist/iter_0000005"; }

  TempFolder folder_;
};

TEST_F(MegatronFolders, AreRecognised) {
  EXPECT_TRUE(is_megatron_folder(folder_ / "dense/torch_dist"));
  EXPECT_TRUE(is_megatron_folder(dist()));
  EXPECT_TRUE(is_megatron_folder(folder_ / "dense/legacy"));
  EXPECT_FALSE(is_megatron_folder(folder_ / "dense"));
  EXPECT_EQ(refusal(dist()), "none");
}

TEST_F(MegatronFolders, ErrorsNameMissingAndDamagedFiles) {
  const std::string description = read_file(dist() / ".metadata");
  write_file_atomically(dist() / ".metadata", description.substr(0, description.size() / 2));
  EXPECT_THAT(refusal(dist()), HasSubstr(".metadata: the pickle ends in the middle"));
  write_file_atomically(dist() / ".metadata", description);
  const std::string data = read_file(dist() / "__0_0.distcp");
  write_file_atomically(dist() / "__0_0.distcp", data.substr(0, data.size() / 2));
  EXPECT_THAT(refusal(dist()), HasSubstr("lies beyond the end of __0_0.distcp"));
  fs::remove(dist() / "__0_0.distcp");
  EXPECT_THAT(refusal(dist()), HasSubstr("__0_0.distcp is missing"));
  fs::remove(dist() / "common.pt");
  write_file_atomically(dist() / "__0_0.distcp", data);
  EXPECT_THAT(refusal(dist()), HasSubstr("does not say which model it is of"));
  fs::remove_all(folder_ / "dense/legacy/mp_rank_01");
  EXPECT_THAT(refusal(folder_ / "dense/legacy"), HasSubstr("mp_rank_01/model_optim_rng.pt is missing"));
}

// expert_tensor_parallel_size replaces expert_model_parallel_size, which is 1: a name one byte longer, without its
// entry in the pickle's memo, and a two-byte number.
TEST_F(MegatronFolders, RefusesLegacyExpertsShardedDifferently) {
  const fs::path legacy = folder_ / "experts", file = legacy / "mp_rank_00/model_optim_rng.pt";
  fs::copy(megatron_golden("experts") / "legacy", legacy, fs::copy_options::recursive);
  const std::string before = read_file(file), name = "expert_model_parallel_size",
                    other = "expert_tensor_parallel_size";
  const size_t at = before.find(name);
  ASSERT_NE(at, std::string::npos);
  const auto with_size = [&](char ranks) {
    std::string bytes = before;
    bytes[at - 4] = static_cast<char>(other.size());
    const std::string number = {'M', ranks, '\0'};
    bytes.replace(at, other.size() + number.size(), other + number);
    write_file_atomically(file, bytes);
    return refusal(legacy);
  };
  EXPECT_EQ(with_size(2), "none") << "as tensor_model_parallel_size";
  EXPECT_THAT(with_size(1), HasSubstr("args.expert_tensor_parallel_size divides the experts of a legacy checkpoint "
                                      "otherwise than the rest, which is not read. Let Megatron-LM write it anew"));
}

TEST(MegatronArguments, RefusalsNameArgumentsOfOtherModels) {
  PickleWriter writer;
  writer.arguments({{"num_layers", int64_t{2}}, {"apply_residual_connection_post_layernorm", true}});
  const std::string bytes = writer.finish();
  const Pickle pickle(bytes, "file");
  try {
    read_megatron_arguments(pickle.root().state->members(), "folder");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("folder: args.apply_residual_connection_post_layernorm = true: in Witan the "
                                        "residual connection"));
  }
}

TEST(MegatronArguments, RefusedExportsNameTheReason) {
  for (const auto& [type, why] :
       {std::pair{"nemotron_h", "Megatron-LM's Mamba-2 has convolutions of four taps; export --format hf"},
        std::pair{"olmo_hybrid", "norm_placement = \"pre\", not \"post_attention\""},
        std::pair{"lfm2_moe",
                  "of these variants Megatron-LM's checkpoints hold Gated DeltaNet's alone; export --format hf"}}) {
    const ModelConfig model = read_hf_config(read_file(testing::golden(type) / kHfConfig), type).model;
    EXPECT_THAT(test::message_of<ConfigError>([&] { write_megatron_arguments(model, 64); }), HasSubstr(why)) << type;
  }
}

std::string refused_arguments(const std::vector<std::pair<std::string, MegatronValue>>& more) {
  std::vector<std::pair<std::string, MegatronValue>> all = {{"num_layers", int64_t{3}},
                                                            {"hidden_size", int64_t{16}},
                                                            {"num_attention_heads", int64_t{2}},
                                                            {"normalization", std::string("RMSNorm")},
                                                            {"swiglu", true}};
  all.insert(all.end(), more.begin(), more.end());
  PickleWriter writer;
  writer.arguments(all);
  const std::string bytes = writer.finish();
  const Pickle pickle(bytes, "file");
  return test::message_of<ConfigError>([&] { read_megatron_arguments(pickle.root().state->members(), "folder"); });
}

TEST(MegatronArguments, RefusedRecurrentModelsNameTheArgument) {
  const auto text = [](const char* of) { return std::string(of); };
  EXPECT_THAT(refused_arguments({{"is_hybrid_model", true}}),
              HasSubstr("args.is_hybrid_model = true: layers of such a model are read from hybrid_override_pattern"));
  EXPECT_THAT(refused_arguments({{"hybrid_layer_pattern", text("M*|G")}}),
              HasSubstr("args.hybrid_layer_pattern = M*|G: layers are read by the letters M, *, - and E"));
  EXPECT_THAT(refused_arguments({{"hybrid_override_pattern", text("M*-")}, {"norm_epsilon", 1e-6}}),
              HasSubstr("args.norm_epsilon = 1e-06: Megatron-LM's Mamba-2 normalises its output with 1e-5"));
  EXPECT_THAT(refused_arguments({{"experimental_attention_variant", text("dsa")}}),
              HasSubstr("of these variants gated_delta_net alone is read"));
  EXPECT_THAT(refused_arguments({{"linear_attention_freq", int64_t{4}}}),
              HasSubstr("args.linear_attention_freq = 4: it chooses layers"));
  const std::pair<std::string, MegatronValue> delta{"experimental_attention_variant", text("gated_delta_net")};
  EXPECT_THAT(refused_arguments({delta, {"swiglu", false}}), HasSubstr("args.swiglu = false: Witan's Gated DeltaNet"));
  EXPECT_THAT(refused_arguments({delta, {"normalization", text("LayerNorm")}}),
              HasSubstr("args.normalization = LayerNorm: Witan's Gated DeltaNet has an RMSNorm"));
}

// A bfloat16 run's float32 tensors stay so, and shorter steps of Mamba-2 are those of Megatron-LM.
TEST(MegatronExports, RecurrentLayersKeepFloat32BesideBfloat16) {
  for (const char* name : {"mamba", "delta"}) {
    TempFolder folder;
    MegatronWeights source(megatron_golden(name) / "torch_dist");
    import_weights(source, folder / "float", {}, Json::object());
    ModelConfig model = source.model();
    model.dtype = "bfloat16";
    if (model.mamba.any()) model.mamba.mamba_dt_min = 0.001;
    CheckpointWeights weights(open_checkpoint(folder / "float/step-0"), model);
    fs::create_directory(folder / "out");
    export_megatron(weights, {{}, source.positions()}, folder / "out");
    MegatronWeights again(folder / "out");
    EXPECT_EQ(again.model().dtype, "bfloat16");
    EXPECT_EQ(again.model().mamba.mamba_dt_min, 0);
    const auto before = values_of(source), after = values_of(again);
    size_t wide = 0;
    for (const auto& [tensor, values] : before) {
      const bool stays = tensor.ends_with(".A_log") || tensor.ends_with(".D") || tensor.ends_with(".dt_bias") ||
                         tensor.ends_with("gated_delta.norm.weight") || tensor.ends_with("mamba2.norm.weight") ||
                         tensor.ends_with("expert_bias");
      wide += stays ? 1 : 0;
      EXPECT_EQ(values == after.at(tensor), stays) << tensor;
    }
    EXPECT_GT(wide, 5U);
  }
}

// Qwen3-Next and Qwen3.5, whose folders join projections in other orders.
TEST(MegatronExports, HybridsOfFoldersComeBack) {
  for (const char* type : {"qwen3_next", "qwen3_5_moe_text"}) {
    TempFolder folder;
    HfWeights source(testing::golden(type));
    import_weights(source, folder / "run", {}, Json::object());
    CheckpointWeights weights(open_checkpoint(folder / "run/step-0"), source.model());
    fs::create_directory(folder / "out");
    export_megatron(weights, {{}, 64}, folder / "out");
    MegatronWeights again(folder / "out");
    EXPECT_THAT(differences(again.model(), source.model()), ::testing::IsEmpty()) << type;
    const auto before = values_of(source), after = values_of(again);
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [tensor, values] : before) {
      if (!tensor.ends_with("gated_delta.norm.weight")) {
        EXPECT_EQ(after.at(tensor), values) << tensor;
        continue;
      }
      for (size_t i = 0; i < values.size(); ++i)  // less 1, and 1 more
        EXPECT_NEAR(after.at(tensor)[i], values[i], 1e-6) << tensor;
    }
  }
}

// Positions, windows and activations, which no golden model has.
TEST(MegatronArguments, RoundTripTheModel) {
  const auto read = [](std::vector<std::pair<std::string, MegatronValue>> more) {
    std::vector<std::pair<std::string, MegatronValue>> all = {
        {"num_layers", int64_t{3}}, {"hidden_size", int64_t{16}}, {"num_attention_heads", int64_t{2}}};
    all.insert(all.end(), more.begin(), more.end());
    PickleWriter writer;
    writer.arguments(all);
    const std::string bytes = writer.finish();
    const Pickle pickle(bytes, "file");
    return read_megatron_arguments(pickle.root().state->members(), "folder").model;
  };
  const AttentionConfig scaled = read({{"use_rope_scaling", true}}).attention;
  EXPECT_EQ(scaled.rope_scaling_type, "llama3");
  EXPECT_EQ(scaled.rotary_scaling_factor, 8) << "Megatron-LM's default";
  EXPECT_EQ(scaled.original_max_position_embeddings, 8192);
  EXPECT_EQ(read({{"openai_gelu", true}, {"swiglu", false}}).mlp.gelu_tanh, true);
  EXPECT_EQ(read({{"swiglu", false}}).mlp.gelu_tanh, false);
  const std::vector<std::pair<std::string, MegatronValue>> windows = {
      {"window_size", std::vector<int64_t>{5, 0}}, {"window_attn_skip_freq", std::vector<int64_t>{1, 0, 1}}};
  const ModelConfig windowed = read(windows);
  ASSERT_EQ(window_of(windowed.layers()[0].mixer), 6);
  EXPECT_EQ(window_of(windowed.layers()[1].mixer), 0);
  const auto written = write_megatron_arguments(windowed, 64);
  for (const auto& [name, value] : windows)
    EXPECT_THAT(written, ::testing::Contains(::testing::Pair(name, value))) << name;
}

INSTANTIATE_TEST_SUITE_P(All, MegatronModels,
                         ::testing::Values("dense", "gpt", "experts", "shared", "latent", "mamba", "delta"),
                         [](const auto& model) { return model.param; });

// An untied head in a model whose arguments say that it is tied.
TEST_F(MegatronFolders, RefusesATiedHeadThatDiffersFromTheEmbedding) {
  fs::copy(megatron_golden("gpt"), folder_ / "gpt", fs::copy_options::recursive);
  const fs::path folder = folder_ / "gpt/torch_dist/iter_0000005";
  std::string common = read_file(folder / "common.pt");
  const size_t name = common.find("untie_embeddings_and_output_weights");
  ASSERT_NE(name, std::string::npos);
  const size_t value = common.find('\x88', name);  // the pickle's True
  ASSERT_LT(value, name + 45);
  common[value] = '\x89';
  write_file_atomically(folder / "common.pt", common);
  EXPECT_THAT(refusal(folder), HasSubstr("its arguments tie the output layer to the embedding, but"));
}

}  // namespace
}  // namespace witan
