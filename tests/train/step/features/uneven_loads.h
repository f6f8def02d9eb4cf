// Small models whose experts have uneven loads, and checks that rerun steps do not change results.
#pragma once

#include "train/step/run_support.h"

namespace witan::testing {

// A router without balancing losses and with few distinct inputs.
inline RunConfig with_uneven_loads(const char* dtype) {
  RunConfig config = small_config();
  config.model.dtype = dtype;
  config.model.vocab_size = 7;
  config.model.moe.moe_router_load_balancing_type = "none";
  config.model.moe.moe_aux_loss_coeff = "0";
  config.parallel.deterministic = true;
  config.optimizer.initial_loss_scale = 1024;  // for float16: no step is skipped
  return config;
}

// Balanced by a bias that affects only choices, and by both losses.
inline void balance_by_bias(RunConfig& config) {
  config.model.moe.moe_router_score_function = "sigmoid";
  config.model.moe.moe_router_enable_expert_bias = true;
  config.model.moe.moe_router_load_balancing_type = "aux_loss";
  config.model.moe.moe_aux_loss_coeff = "0.001";
  config.model.moe.moe_z_loss_coeff = 1e-3;
}

// For steps of one layout, in which loads are rounded equally.
inline void expect_same_bits_of_steps(const Trajectory& a, const Trajectory& b) {
  expect_same_bits(a, b);
  EXPECT_EQ(a.loads, b.loads);
}

}  // namespace witan::testing
