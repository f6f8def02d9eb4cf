// The parameters of a model: their names, shapes and initial values.
#include <map>
#include <set>

#include "model/model_support.h"
#include "witan/model/transformer.h"

namespace witan {
namespace {

using testing::Alone;
using testing::gpt_config;
using testing::other_config;
using testing::Rank;
using testing::tiny_config;
using testing::values;

TEST(Transformer, NamesAreUniqueAndInOrder) {
  Rank rank;
  Alone alone;
  ModelConfig config = tiny_config(2);
  config.moe.moe_layer_freq = "[1,0]";
  const auto names_of = [&] {
    std::vector<std::string> names;
    const Transformer model(rank.stream, config, 1, alone);
    for (const Parameter* parameter : model.parameters()) names.push_back(parameter->name());
    return names;
  };
  std::vector<std::string> expected = {"embedding.weight",
                                       "layers.0.attention_norm.weight",
                                       "layers.0.attention.q_proj.weight",
                                       "layers.0.attention.k_proj.weight",
                                       "layers.0.attention.v_proj.weight",
                                       "layers.0.attention.o_proj.weight",
                                       "layers.0.mlp_norm.weight",
                                       "layers.0.moe.router.weight",
                                       "layers.0.moe.experts.gate_up_proj",
                                       "layers.0.moe.experts.down_proj",
                                       "layers.1.attention_norm.weight",
                                       "layers.1.attention.q_proj.weight",
                                       "layers.1.attention.k_proj.weight",
                                       "layers.1.attention.v_proj.weight",
                                       "layers.1.attention.o_proj.weight",
                                       "layers.1.mlp_norm.weight",
                                       "layers.1.mlp.gate_up_proj.weight",
                                       "layers.1.mlp.down_proj.weight",
                                       "final_norm.weight"};
  EXPECT_EQ(names_of(), expected);
  config.untie_embeddings_and_output_weights = true;
  expected.push_back("head.weight");
  EXPECT_EQ(names_of(), expected);
  EXPECT_EQ(std::set<std::string>(expected.begin(), expected.end()).size(), expected.size());
  config.moe.moe_shared_expert_intermediate_size = 10;
  const auto experts = std::ranges::find(expected, "layers.0.moe.experts.down_proj");
  expected.insert(experts + 1,
                  {"layers.0.moe.shared_experts.gate_up_proj.weight", "layers.0.moe.shared_experts.down_proj.weight"});
  EXPECT_EQ(names_of(), expected);
}

TEST(Transformer, BiasesAndPositionsHaveNames) {
  Rank rank;
  Alone alone;
  const Transformer model(rank.stream, gpt_config(), 1, alone);
  std::vector<std::string> names, undecayed;
  for (const Parameter* parameter : model.parameters()) {
    names.push_back(parameter->name());
    if (parameter->spec().weight_decay) continue;
    undecayed.push_back(parameter->name());
    if (parameter->name().ends_with("_proj.bias")) {
      EXPECT_EQ(parameter->spec().init.kind, Initialization::Kind::zeros) << parameter->name();
    }
  }
  ASSERT_GT(names.size(), 15u);
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 16),
            (std::vector<std::string>{
                "embedding.weight", "position_embedding.weight", "layers.0.attention_norm.weight",
                "layers.0.attention_norm.bias", "layers.0.attention.q_proj.weight", "layers.0.attention.q_proj.bias",
                "layers.0.attention.k_proj.weight", "layers.0.attention.k_proj.bias",
                "layers.0.attention.v_proj.weight", "layers.0.attention.v_proj.bias",
                "layers.0.attention.o_proj.weight", "layers.0.attention.o_proj.bias", "layers.0.mlp_norm.weight",
                "layers.0.mlp_norm.bias", "layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.bias"}));
  for (const std::string& name : names)
    EXPECT_EQ(std::ranges::find(undecayed, name) != undecayed.end(),
              name.ends_with(".bias") || name.find("norm") != std::string::npos)
        << name;
}

TEST(Transformer, LayersMatchTheirSpecs) {
  Rank rank;
  Alone alone;
  const ModelConfig config = testing::mixed_config();
  const Transformer model(rank.stream, config, 1, alone);
  std::map<std::string, Shape> shapes;
  for (const Parameter* parameter : model.parameters()) shapes.emplace(parameter->name(), parameter->global_shape());
  EXPECT_EQ(shapes.at("layers.0.mlp.gate_up_proj.weight"), Shape({24, 16}));
  EXPECT_FALSE(shapes.contains("layers.1.mlp.gate_up_proj.weight"));
  for (const char* layer : {"layers.1.", "layers.2."}) {
    EXPECT_EQ(shapes.at(cat(layer, "moe.experts.gate_up_proj")), Shape({4, 16, 16}));
    EXPECT_EQ(shapes.at(cat(layer, "moe.experts.down_proj")), Shape({4, 16, 8}));
    EXPECT_EQ(shapes.at(cat(layer, "attention.q_proj.weight")), Shape({24, 16}));
    EXPECT_EQ(shapes.at(cat(layer, "attention.k_proj.weight")), Shape({12, 16}));
    EXPECT_EQ(shapes.at(cat(layer, "attention.v_proj.weight")), Shape({20, 16}));
    EXPECT_EQ(shapes.at(cat(layer, "attention.o_proj.weight")), Shape({16, 40}));
  }
}

TEST(Transformer, ProjectionsIntoTheResidualStreamStartSmaller) {
  Rank rank;
  Alone alone;
  ModelConfig config = tiny_config(2);
  config.num_layers = 8;
  const Transformer model(rank.stream, config, 1, alone);
  for (const Parameter* parameter : model.parameters()) {
    if (parameter->spec().init.kind != Initialization::Kind::normal) continue;
    const bool output = parameter->name().find("o_proj") != std::string::npos ||
                        parameter->name().find("down_proj") != std::string::npos;
    EXPECT_DOUBLE_EQ(parameter->spec().init.std, output ? 0.3 / 4 : 0.3) << parameter->name();
  }
}

TEST(Transformer, TorchInitialisationUsesExpertsFanIn) {
  Rank rank;
  Alone alone;
  ModelConfig config = other_config(4);
  config.init_method = "torch";
  ASSERT_NE(config.hidden_size, config.mlp.ffn_hidden_size);
  Transformer model(rank.stream, config, 77, alone);
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->spec().expert) continue;
    EXPECT_EQ(parameter->spec().init.fan_in, parameter->spec().shape[2]) << parameter->name();
  }
}

TEST(Transformer, TorchInitialisationMatchesPyTorchModules) {
  Rank rank;
  Alone alone;
  ModelConfig config = other_config(0);
  config.init_method = "torch";
  config.add_bias_linear = true;
  Transformer model(rank.stream, config, 77, alone);
  std::map<std::string, std::vector<double>> parameters;
  for (const Parameter* parameter : model.parameters()) parameters[parameter->name()] = values(parameter->value());
  TorchRandom random(77);
  const auto drawn = [&](const std::string& name, int64_t fan_in) {
    std::vector<double>& actual = parameters.at(name);
    std::vector<double> expected(actual.size());
    const auto take = [&](int64_t first, std::span<const float> from) {
      std::ranges::copy(from, expected.begin() + first);
    };
    const auto n = static_cast<int64_t>(expected.size());
    if (fan_in == 0)
      random.normal(n, take);
    else
      random.uniform(n, 1 / std::sqrt(static_cast<double>(fan_in)), take);
    EXPECT_EQ(actual, expected) << name;
  };
  drawn("embedding.weight", 0);
  for (const std::string block : {"layers.0.", "layers.1."}) {
    const auto linear = [&](const std::string& name, int64_t fan_in) {
      drawn(block + name + ".weight", fan_in);
      drawn(block + name + ".bias", fan_in);
    };
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) linear(cat("attention.", name), 16);
    linear("mlp.up_proj", 16);
    linear("mlp.down_proj", 12);
  }
  drawn("head.weight", 16);
  EXPECT_EQ(parameters.at("final_norm.weight"), std::vector<double>(16, 1.0));
}

}  // namespace
}  // namespace witan
