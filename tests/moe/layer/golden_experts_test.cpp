// Compares experts and shared experts with transformers (tests/golden/moe/experts.tsv), forward and backward.
#include "moe/moe_support.h"
#include "support/golden.h"
#include "witan/moe/layer/experts.h"
#include "witan/moe/layer/moe.h"

namespace witan {
namespace {

using testing::Alone;
using testing::bind_gradients;
using testing::close;
using testing::GoldenValues;
using testing::Rank;
using testing::routing_of;
using testing::values;

constexpr int64_t kExperts = 4, kTopk = 2, kWidth = 5, kFeatures = 3, kTokens = 6;

class Golden : public GoldenValues {
 public:
  Golden() : GoldenValues("moe/experts.tsv") {}

  Tensor tensor(Rank& rank, const Shape& shape, const std::string& name) const {
    return rank.tensor<double>(shape, of(name));
  }
  // Loads a module's parameters, in order, from the values of these names.
  void load(Module& module, const std::string& prefix, const std::vector<std::string>& names) const {
    const auto parameters = module.parameters();
    ASSERT_EQ(parameters.size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      const auto& from = of(prefix + names[i]);
      ASSERT_EQ(static_cast<size_t>(parameters[i]->elements()), from.size()) << names[i];
      std::ranges::copy(from, parameters[i]->value().data<double>());
    }
  }
  void expect_gradients(Module& module, const std::string& prefix, const std::vector<std::string>& names,
                        double tolerance) const {
    for (size_t i = 0; i < names.size(); ++i)
      EXPECT_TRUE(close(values(module.parameters()[i]->gradient()), of(prefix + "d" + names[i]), tolerance, tolerance))
          << names[i];
  }
};

MlpConfig gpt_oss_mlp() {
  MlpConfig mlp;
  mlp.ffn_hidden_size = kFeatures;
  mlp.activation_func_clamp_value = 7;
  mlp.glu_activation_scale = 1.702;
  mlp.glu_linear_offset = 1;
  return mlp;
}

// Experts with biases and clamped SwiGLU, with either backend, and with the activation kept or recomputed.
TEST(GoldenExperts, GptOss) {
  const Golden golden;
  const std::vector<std::string> names = {"gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias"};
  for (const std::string backend : {"grouped", "block_sparse", "sequential"})
    for (const bool rematerialise : {false, true}) {
      SCOPED_TRACE(backend + (rematerialise ? ", rematerialised" : ""));
      Rank rank;
      Alone alone;
      MoeConfig moe;
      moe.num_experts = kExperts;
      moe.moe_expert_add_bias = true;
      moe.moe_expert_backend = backend;
      Experts experts({.stream = rank.stream, .dtype = DType::f64}, moe, gpt_oss_mlp(), kWidth);
      bind_gradients(rank.stream, experts);
      golden.load(experts, "gpt_oss.", names);
      std::vector<int32_t> ids;
      for (const double id : golden.of("gpt_oss.ids")) ids.push_back(static_cast<int32_t>(id));

      Tape tape(rank.stream);
      const Var x = tape.input(golden.tensor(rank, {kTokens, kWidth}, "gpt_oss.x")),
                weights = tape.input(golden.tensor(rank, {kTokens, kTopk}, "gpt_oss.weights"));
      const DispatchMap map = make_dispatch_map(rank.stream, routing_of(rank, ids, kTopk, kExperts), alone);
      const Var y =
          combine(tape, experts.forward(tape, dispatch(tape, x, weights, map), {map.groups}, rematerialise), map);
      tape.backward({{y, golden.tensor(rank, {kTokens, kWidth}, "gpt_oss.dy")}});
      EXPECT_TRUE(close(values(y.value()), golden.of("gpt_oss.y"), 1e-12, 1e-12));
      EXPECT_TRUE(close(values(tape.gradient(x)), golden.of("gpt_oss.dx"), 1e-12, 1e-12));
      EXPECT_TRUE(close(values(tape.gradient(weights)), golden.of("gpt_oss.dweights"), 1e-12, 1e-12));
      golden.expect_gradients(experts, "gpt_oss.", names, 1e-12);
    }
}

// The whole layer. The reference's router computes its softmax in float32, which rounds weights by a relative 2^-24.
TEST(GoldenExperts, Qwen2MoeWithItsGatedSharedExpert) {
  const Golden golden;
  const std::vector<std::string> names = {"router",      "gate_up_proj",        "down_proj",
                                          "shared_gate", "shared_gate_up_proj", "shared_down_proj"};
  Rank rank;
  Alone alone;
  MoeConfig config;
  config.num_experts = kExperts;
  config.moe_router_topk = kTopk;
  config.moe_router_pre_softmax = true;
  config.moe_shared_expert_intermediate_size = 4;
  config.moe_shared_expert_gate = true;
  MlpConfig mlp;
  mlp.ffn_hidden_size = kFeatures;
  Moe layer({.stream = rank.stream, .dtype = DType::f64}, config, mlp, kWidth, alone);
  bind_gradients(rank.stream, layer);
  golden.load(layer, "qwen2_moe.", names);
  Tape tape(rank.stream);
  const Var x = tape.input(golden.tensor(rank, {1, kTokens, kWidth}, "qwen2_moe.x"));
  const Var y = layer.forward(tape, x, false).y;
  tape.backward({{y, golden.tensor(rank, {1, kTokens, kWidth}, "qwen2_moe.dy")}});
  EXPECT_TRUE(close(values(y.value()), golden.of("qwen2_moe.y"), 2e-6, 2e-6));
  EXPECT_TRUE(close(values(tape.gradient(x)), golden.of("qwen2_moe.dx"), 2e-5, 2e-5));
  golden.expect_gradients(layer, "qwen2_moe.", names, 2e-5);
}

}  // namespace
}  // namespace witan
