// The scores of routers and the weights that are made of them, apart from their kernels (kernels/moe/router.h):
// configurations name them.
#pragma once

#include <cstdint>

namespace witan::kernels {

// How logits become scores, and the scores of the chosen experts their weights. Each has its mathematics in
// kernels/moe/cpu/router_scores.h and kernels/moe/cuda/router.cu.
enum class Scores : uint8_t {
  softmax,            // p = softmax over all experts; weights = p[ids]
  softmax_of_chosen,  // p likewise, for the losses; weights = softmax over the K chosen logits
  // s = sigmoid(logits); p = s / (sum_e s[e] + 1e-20), for the losses; weights = s[ids], which where K > 1 are divided
  // by their sum + 1e-20 (DeepSeek-V3, arXiv:2412.19437, equations 12 to 15; Megatron-Core's
  // topk_routing_with_score_function)
  sigmoid,
  sqrtsoftplus,  // likewise, of s = sqrt(ln(1 + exp(logits))) (Megatron-LM's score function of that name)
};

// Whether each expert's score depends on its own logit alone.
constexpr bool scores_each_alone(Scores scores) {
  return scores == Scores::sigmoid || scores == Scores::sqrtsoftplus;
}

// How the chosen experts' scores become their weights. Scores alone are a Scoring too.
struct Scoring {
  Scores scores = Scores::softmax_of_chosen;
  bool normalised = true;  // false: weights of sigmoid and sqrtsoftplus are not divided by their sum
  double scaling = 1;      // multiplies every weight; not 0

  constexpr Scoring() = default;
  constexpr Scoring(Scores scores_, bool normalised_ = true, double scaling_ = 1)  // NOLINT: see above
      : scores(scores_), normalised(normalised_), scaling(scaling_) {}
  // Whether the weights of K chosen are divided by their sum.
  constexpr bool divides(int64_t K) const { return normalised && K > 1; }
};

// The most that the router's kernels hold in a GPU's shared memory and registers; the CPU's have no bounds.
inline constexpr int kMostExpertsOnGpu = 1024, kMostChosenOnGpu = 64;  // num_experts, moe_router_topk

}  // namespace witan::kernels
