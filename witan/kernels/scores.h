// The scores of routers, apart from their kernels (kernels/router.h): configurations name them.
#pragma once

#include <cstdint>

namespace witan::kernels {

// How logits become scores, and the scores of the chosen experts their weights. Each has its mathematics in
// kernels/cpu/router.cpp and kernels/cuda/moe/router.cu.
enum class Scores : uint8_t {
  softmax,            // p = softmax over all experts; weights = p[ids]
  softmax_of_chosen,  // p likewise, for the losses; weights = softmax over the K chosen logits
  // s = sigmoid(logits); p = s / (sum_e s[e] + 1e-20), for the losses; weights = s[ids], which where K > 1 are divided
  // by their sum + 1e-20 (DeepSeek-V3, arXiv:2412.19437, equations 12 to 15; Megatron-Core's
  // topk_routing_with_score_function)
  sigmoid,
};

}  // namespace witan::kernels
