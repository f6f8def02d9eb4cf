#include "witan/planner/pages/plan_page.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

// The reference models of public runs on 8 GPUs (docs/parity.md): Megatron-LM's printed figures, and the exact count.
RunConfig reference(int64_t experts, int64_t divided) {
  RunConfig config;
  config.model.num_layers = 24;
  config.model.hidden_size = 512;
  config.model.vocab_size = 128256;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.attention.num_query_groups = 1;
  config.model.mlp.ffn_hidden_size = 1792;
  config.model.moe.num_experts = experts;
  config.model.moe.moe_router_topk = 1;
  config.parallel.ranks = 8;
  config.parallel.expert_model_parallel_size = divided;
  return config;
}

bool has(const std::string& text, const std::string& piece) {
  return text.find(piece) != std::string::npos;
}

TEST(MegatronMemory, MatchesPublicRuns) {
  const std::string dense = format_megatron_memory(reference(0, 1));
  EXPECT_TRUE(has(dense, "each of 8 ranks")) << dense;
  EXPECT_TRUE(has(dense, "1524.73 MB") && has(dense, "1524.55 MB")) << dense;
  const std::string four = format_megatron_memory(reference(64, 4)), eight = format_megatron_memory(reference(64, 8));
  EXPECT_TRUE(has(four, "31292.23 MB") && has(four, "experts over 4 ranks") && has(four, "13153.68 MB")) << four;
  EXPECT_TRUE(has(eight, "31292.23 MB") && has(eight, "10129.68 MB")) << eight;
  // Without the distributed optimizer each of 213,173,248 parameters takes 18 bytes.
  EXPECT_TRUE(has(dense, "3659.36 MB")) << dense;
}

}  // namespace
}  // namespace witan
