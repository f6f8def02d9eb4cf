// Configurations of routers by their keys, and routings of given logits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/dropout.h"
#include "support/module.h"
#include "witan/moe/routers/selection.h"

namespace witan::testing {

inline MoeConfig config_of(int64_t experts, int64_t topk, const std::map<std::string, std::string>& settings = {}) {
  MoeConfig config;
  config.num_experts = experts;
  config.moe_router_topk = topk;
  for (const auto& [key, value] : settings) set_field(config.fields(), key, value, "test");
  return config;
}

inline Randomness randomness_of(Rank& rank, int64_t iteration = 7, int64_t micro_batch = 3) {
  const kernels::Dropout drawn = dropout_of(rank, 0.5, iteration, micro_batch);
  return {.seed = drawn.seed, .step = drawn.step, .micro_batch = micro_batch};
}

struct Routed {
  std::vector<double> weights;  // [T, K]
  std::vector<int32_t> ids;
};

// Routes logits [T, E] of B sequences with the configuration's router at `path`.
inline Routed route(Rank& rank, const MoeConfig& config, const Tensor& logits, const Tensor& bias = {},
                    const TokenSource& source = {}, int64_t B = 1, const std::string& path = "router") {
  config.validate(2);
  Tape tape(rank.stream);
  const ExpertSelection selection(config, path);
  const auto choice = selection.choice(rank.stream, {logits, B, source, Dropping::by_capacity, nullptr}, bias);
  const Routing routing = ops::route(tape, tape.input(logits), {config.moe_router_topk, config.scoring(), choice});
  return {values(routing.weights.value()), routing.ids.to_vector<int32_t>()};
}

}  // namespace witan::testing
