#include "witan/model/parts.h"

#include <set>

#include "model/model_support.h"

namespace witan {
namespace {

using testing::Alone;
using testing::loss_of;
using testing::micro_batch;
using testing::tiny_config;

constexpr int64_t kTokens = 2 * 9;

// The costs of one forward and backward pass by part, on the meta device.
std::map<std::string, std::map<std::string, Cost>> costs_of(const ModelConfig& config) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  Alone alone;
  Transformer model(stream, config, 1, alone);
  testing::bind_gradients(stream, model);
  const auto observers = charge_parts(model, stream);
  stream.set_part("head");
  Tape tape(stream);
  tape.backward({{loss_of(tape, model, micro_batch(stream, config, 2, 9)), {}}});
  EXPECT_EQ(stream.set_part(""), "head") << "every part was left again";
  return stream.costs();
}

std::set<std::string> parts_of(const ModelConfig& config) {
  std::set<std::string> parts;
  for (const auto& [part, kernels] : costs_of(config)) parts.insert(part);
  return parts;
}

double flops_of(const std::map<std::string, Cost>& kernels, const std::string& prefix) {
  double flops = 0;
  for (const auto& [name, cost] : kernels)
    if (name.starts_with(prefix)) flops += cost.flops;
  return flops;
}

TEST(Parts, MatchTheModel) {
  using Parts = std::set<std::string>;
  for (const std::string recompute : {"none", "selective", "full"}) {
    ModelConfig dense = tiny_config(0), moe = tiny_config(4);
    dense.recompute_granularity = moe.recompute_granularity = recompute;
    EXPECT_EQ(parts_of(dense), (Parts{"embedding", "attention", "mlp", "head"}));
    EXPECT_EQ(parts_of(testing::gpt_config()), (Parts{"embedding", "attention", "mlp", "head"}));
    EXPECT_EQ(parts_of(moe), (Parts{"embedding", "attention", "router", "experts", "dispatch", "head"}));
    moe.moe.moe_shared_expert_intermediate_size = 10;
    EXPECT_EQ(parts_of(moe), (Parts{"embedding", "attention", "router", "experts", "dispatch", "mlp", "head"}));
  }
}

// Per weight and token, the forward takes 2 FLOPs, and both gradients together twice as many.
TEST(Parts, ChargeTheirMatrixProducts) {
  const ModelConfig dense = tiny_config(0), moe = tiny_config(4);
  const auto T = static_cast<double>(kTokens), L = static_cast<double>(dense.num_layers);
  const double mlp = 3 * 16 * 12, attention = 2 * 16 * 16 + 2 * 16 * 8, head = 16 * 23, router = 16 * 4;
  auto costs = costs_of(dense);
  EXPECT_DOUBLE_EQ(flops_of(costs["mlp"], "gemm"), 6 * T * L * mlp);
  EXPECT_DOUBLE_EQ(flops_of(costs["attention"], "gemm"), 6 * T * L * attention);
  EXPECT_DOUBLE_EQ(flops_of(costs["head"], "gemm"), 6 * T * head);
  costs = costs_of(moe);
  EXPECT_DOUBLE_EQ(flops_of(costs["experts"], "grouped_gemm"), 6 * T * 2 * L * mlp);
  EXPECT_DOUBLE_EQ(flops_of(costs["router"], "gemm"), 6 * T * L * router);
}

// In modded-nanogpt's formulas, value embeddings are looked up, and one of four layers has no attention.
TEST(Parts, OfJoinedLayersChargeTheirMatrixProducts) {
  const ModelConfig config = testing::nanogpt_config(4);
  const auto T = static_cast<double>(kTokens);
  auto costs = costs_of(config);
  EXPECT_EQ(parts_of(config),
            (std::set<std::string>{"embedding", "attention", "router", "experts", "dispatch", "head"}));
  EXPECT_DOUBLE_EQ(flops_of(costs["attention"], "gemm"), 6 * T * 3 * 4 * 16 * 16);
  EXPECT_DOUBLE_EQ(flops_of(costs["experts"], "grouped_gemm"), 6 * T * 4 * 2 * 16 * 12);
  EXPECT_DOUBLE_EQ(flops_of(costs["embedding"], "gemm"), 0);
}

TEST(Parts, RecomputedBlocksChargeTheirForwardTwice) {
  ModelConfig config = tiny_config(0);
  config.recompute_granularity = "full";
  auto costs = costs_of(config);
  EXPECT_DOUBLE_EQ(flops_of(costs["mlp"], "gemm"), 8 * static_cast<double>(kTokens * config.num_layers) * 3 * 16 * 12);
}

}  // namespace
}  // namespace witan
