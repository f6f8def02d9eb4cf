// The config for tests of load balancing: a few short steps in float64, each of them clipped.
#pragma once

#include <string>

#include "train/step/run_support.h"

namespace witan::testing {

inline RunConfig balance_recipe(const std::string& load_balancing_type) {
  RunConfig config = small_config();
  config.model.dtype = "float64";
  config.model.vocab_size = 62;
  config.model.attention.num_attention_heads = 4;
  config.model.attention.num_query_groups = 2;
  config.model.moe.moe_router_load_balancing_type = load_balancing_type;
  config.data.seq_length = 16;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  config.train.sample_tokens = 0;
  config.optimizer.clip_grad = 0.1;
  return config;
}

}  // namespace witan::testing
