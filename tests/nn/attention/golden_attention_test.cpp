// Compares attention layers with transformers (tests/golden/attention/attention.tsv): forward, backward and decoding.
#include "nn/attention/attention_support.h"
#include "support/golden.h"
#include "witan/nn/attention/grouped_query.h"

namespace witan {
namespace {

using testing::bind_gradients;
using testing::close;
using testing::GoldenValues;
using testing::Rank;
using testing::values;

constexpr int64_t kTokens = 6, kModelWidth = 8;
constexpr double kClose = 1e-12;

class GoldenLayers : public GoldenValues {
 public:
  GoldenLayers() : GoldenValues("attention/attention.tsv") {}

  // Loads the golden values into every parameter; there must be neither more nor fewer of them.
  void load(const Module& module, const std::string& layer) const {
    size_t count = 0;
    for (const auto& [name, tensor] : all()) count += name.starts_with(layer + ".d.") ? 1 : 0;
    EXPECT_EQ(module.parameters().size(), count);
    for (Parameter* parameter : module.parameters()) {
      const auto& from = of(layer + parameter->name().substr(module.path().size()));
      ASSERT_EQ(static_cast<size_t>(parameter->elements()), from.size()) << parameter->name();
      std::ranges::copy(from, parameter->value().data<double>());
    }
  }
};

Positions golden_positions(Rank& rank) {
  std::vector<int32_t> all(kTokens);
  for (int32_t i = 0; i < kTokens; ++i) all[static_cast<size_t>(i)] = i;
  return {rank.tensor<int32_t>({1, kTokens}, all), {}};
}

void expect_golden(const std::string& layer, const AttentionConfig& config, Bias bias = Bias::none,
                   double epsilon = 1e-5) {
  SCOPED_TRACE(layer);
  const GoldenLayers golden;
  Rank rank;
  NormConfig norm;
  norm.norm_epsilon = epsilon;
  GroupedQueryAttention attention({.stream = rank.stream, .dtype = DType::f64, .path = "attention"},
                                  std::get<MultiHeadSpec>(config.layers(kModelWidth, 1).front()), kModelWidth, bias,
                                  nullptr, norm);
  bind_gradients(rank.stream, attention);
  golden.load(attention, layer);
  const Shape shape{1, kTokens, kModelWidth};
  const Tensor x = rank.tensor<double>(shape, golden.of(layer + ".x"));
  const Positions where = golden_positions(rank);
  Tape tape(rank.stream);
  const Var in = tape.input(x), y = attention.forward(tape, in, where);
  EXPECT_TRUE(close(values(y.value()), golden.of(layer + ".y"), kClose, kClose));
  tape.backward({{y, rank.tensor<double>(shape, golden.of(layer + ".dy"))}});
  EXPECT_TRUE(close(values(tape.gradient(in)), golden.of(layer + ".dx"), kClose, kClose));
  for (Parameter* parameter : attention.parameters())
    EXPECT_TRUE(close(values(parameter->gradient()),
                      golden.of(layer + ".d" + parameter->name().substr(attention.path().size())), kClose, kClose))
        << parameter->name();
  Tape off(rank.stream, Tape::Mode::off);
  const auto state = attention.make_state(rank.stream, {1, kTokens}, DType::f64);
  const Positions step = testing::step_positions(rank, 1, kTokens, 0);
  EXPECT_TRUE(close(values(attention.decode(off, off.constant(x), step, *state).value()), golden.of(layer + ".y"),
                    kClose, kClose))
      << "decoded";
}

AttentionConfig golden_config() {
  AttentionConfig config;
  config.num_attention_heads = 4;
  config.num_query_groups = 2;
  return config;
}

TEST(GoldenAttention, Qwen3NormalisesEachHead) {
  AttentionConfig config = golden_config();
  config.kv_channels = 4;
  config.qk_layernorm = true;
  expect_golden("qwen3", config, Bias::none, 1e-6);
}

TEST(GoldenAttention, OlmoeNormalisesTheFullWidthAndClips) {
  AttentionConfig config = golden_config();
  config.qk_layernorm = config.qk_layernorm_full_width = true;
  config.clip_qkv = 0.4;
  expect_golden("olmoe", config);
}

TEST(GoldenAttention, Olmo2NormalisesTheFullWidth) {
  AttentionConfig config = golden_config();
  config.qk_layernorm = config.qk_layernorm_full_width = true;
  expect_golden("olmo2", config);
}

TEST(GoldenAttention, Qwen2HasBiasesOfQueriesKeysAndValues) {
  AttentionConfig config = golden_config();
  config.add_qkv_bias = true;
  expect_golden("qwen2", config);
}

TEST(GoldenAttention, GptOssHasSinksBesideAWindow) {
  AttentionConfig config = golden_config();
  config.kv_channels = 4;
  config.softmax_type = "learnable";
  config.window_size = "2,0";
  expect_golden("gpt_oss", config, Bias::zeros);
}

}  // namespace
}  // namespace witan
