#include "witan/moe/shared_experts.h"

namespace witan {

MlpConfig shared_experts_mlp(const MoeConfig& moe, MlpConfig expert) {
  expert.ffn_hidden_size = moe.has_shared_experts() ? moe.moe_shared_expert_intermediate_size : 0;
  return expert;
}

SharedExperts::SharedExperts(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width)
    : Mlp(builder, shared_experts_mlp(moe, mlp), width) {}

}  // namespace witan
