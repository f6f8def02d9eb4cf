// Compares whole models with transformers (tests/golden/attention/models.tsv): losses and gradients.
#include <cmath>
#include <fstream>
#include <sstream>

#include "model/model_support.h"

namespace witan {
namespace {

using testing::Alone;
using testing::bind_gradients;
using testing::MicroBatch;
using testing::Rank;
using testing::values;

constexpr int64_t kVocabulary = 16, kLength = 7;

// A line of a model: its loss, or a parameter with the sum of g_i cos(0.7 i) over its gradient g.
struct GoldenRow {
  std::string name;
  double phase, value;
};
std::vector<GoldenRow> golden_rows(const std::string& model) {
  std::vector<GoldenRow> rows;
  std::ifstream file(WITAN_SOURCE_DIR "/tests/golden/attention/models.tsv");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string of, name, phase, value;
    words >> of >> name >> phase >> value;
    if (of == model) rows.push_back({name, std::stod(phase), std::stod(value)});
  }
  return rows;
}

// Fills parameters as make_models.py does.
void fill_golden(const Parameter& parameter, double phase) {
  const double more = parameter.name().find("norm") == std::string::npos ? 0 : 1;
  for (int64_t i = 0; i < parameter.elements(); ++i)
    parameter.value().data<double>()[i] = 0.5 * std::sin(1.3 * static_cast<double>(i) + phase) + more;
}

MicroBatch golden_batch(Rank& rank) {
  MicroBatch batch{{rank.stream.empty({1, kLength}, DType::i32), {rank.stream.empty({1, kLength}, DType::i32), {}}, {}},
                   rank.stream.empty({kLength}, DType::i32),
                   rank.stream.empty({kLength}, DType::f64)};
  const auto token = [](int64_t i) { return static_cast<int32_t>((5 * i * i + 3 * i) % kVocabulary); };
  for (int64_t i = 0; i < kLength; ++i) {
    batch.input.tokens.data<int32_t>()[i] = token(i);
    batch.input.where.positions.data<int32_t>()[i] = static_cast<int32_t>(i);
    batch.targets.data<int32_t>()[i] = token(i + 1);
    batch.weights.data<double>()[i] = 1.0 / kLength;
  }
  return batch;
}

void expect_golden_model(const std::string& name, const ModelConfig& config) {
  SCOPED_TRACE(name);
  const std::vector<GoldenRow> rows = golden_rows(name);
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, config, 1, alone);
  bind_gradients(rank.stream, model);
  const auto parameters = model.parameters();
  ASSERT_EQ(parameters.size() + 1, rows.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    ASSERT_EQ(parameters[i]->name(), rows[i + 1].name);
    fill_golden(*parameters[i], rows[i + 1].phase);
  }
  const MicroBatch batch = golden_batch(rank);
  Tape tape(rank.stream);
  const Var loss = model.loss(tape, model.forward(tape, batch.input).logits, batch.targets, batch.weights).loss;
  EXPECT_NEAR(loss.value().data<double>()[0], rows[0].value, 1e-12);
  tape.backward({{loss, {}}});
  for (size_t i = 0; i < parameters.size(); ++i) {
    double sum = 0;
    const auto gradient = values(parameters[i]->gradient());
    for (size_t j = 0; j < gradient.size(); ++j) sum += gradient[j] * std::cos(0.7 * static_cast<double>(j));
    const double expected = rows[i + 1].value;
    EXPECT_NEAR(sum, expected, 1e-11 * std::max(1.0, std::abs(expected))) << parameters[i]->name();
  }
}

ModelConfig golden_model(int64_t experts) {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 8;
  config.vocab_size = kVocabulary;
  config.untie_embeddings_and_output_weights = true;
  config.dtype = "float64";
  config.mlp.ffn_hidden_size = 6;
  config.attention.num_attention_heads = 4;
  config.attention.num_query_groups = 2;
  config.moe.num_experts = experts;
  config.moe.moe_router_topk = 2;
  return config;
}

TEST(GoldenModels, Olmoe) {
  ModelConfig config = golden_model(4);
  config.attention.qk_layernorm = config.attention.qk_layernorm_full_width = true;
  config.attention.clip_qkv = 0.8;
  config.moe.moe_router_pre_softmax = true;
  expect_golden_model("olmoe", config);
}

TEST(GoldenModels, Qwen3Moe) {
  ModelConfig config = golden_model(4);
  config.attention.kv_channels = 4;
  config.attention.qk_layernorm = true;
  config.norm.norm_epsilon = 1e-6;
  expect_golden_model("qwen3", config);
}

TEST(GoldenModels, Olmo2) {
  ModelConfig config = golden_model(0);
  config.attention.qk_layernorm = config.attention.qk_layernorm_full_width = true;
  config.norm_placement = "post";
  expect_golden_model("olmo2", config);
}

// Positions are scaled, except in the layer with a window, whose frequencies have another base.
TEST(GoldenModels, Olmo3) {
  ModelConfig config = golden_model(0);
  AttentionConfig& attention = config.attention;
  attention.qk_layernorm = attention.qk_layernorm_full_width = true;
  config.norm_placement = "post";
  attention.window_size = "2,0";
  attention.window_attn_skip_freq = "2";
  attention.rope_scaling_type = "yarn";
  attention.rotary_scaling_factor = 4;
  attention.original_max_position_embeddings = 4;
  attention.beta_fast = 2;
  attention.beta_slow = 0.5;
  attention.window_rotary_base = 5000;
  attention.window_rope_scaling = false;
  expect_golden_model("olmo3", config);
}

TEST(GoldenModels, GptOss) {
  ModelConfig config = golden_model(4);
  config.add_bias_linear = config.moe.moe_expert_add_bias = config.moe.moe_router_add_bias = true;
  config.mlp.activation_func_clamp_value = 7;
  config.mlp.glu_activation_scale = 1.702;
  config.mlp.glu_linear_offset = 1;
  config.attention.kv_channels = 4;
  config.attention.softmax_type = "learnable";
  config.attention.window_size = "2,0";
  config.attention.window_attn_skip_freq = "2";
  expect_golden_model("gpt_oss", config);
}

}  // namespace
}  // namespace witan
