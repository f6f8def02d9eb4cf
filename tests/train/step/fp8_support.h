// Small models with FP8 products.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/planner/plan.h"

namespace witan::testing {

// Sizes that several ranks divide into multiples of 16, with every kind of matrix.
inline RunConfig fp8_config(const char* dtype = "bfloat16") {
  RunConfig config = divisible_config(dtype);
  config.model.fp8_format = "e4m3";
  config.model.num_layers = 2;
  config.model.hidden_size = 64;
  config.model.mlp.ffn_hidden_size = 64;
  config.model.attention.num_attention_heads = 4;
  config.model.attention.num_query_groups = 2;
  config.model.moe.num_experts = 4;
  config.model.moe.moe_shared_expert_intermediate_size = 32;
  config.train.global_batch_size = 4;
  config.optimizer.clip_grad = 1;
  return laid_out(config, {});
}

inline void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double relative) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], relative * expected[i]) << "step " << i;
}

}  // namespace witan::testing
