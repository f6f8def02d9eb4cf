// A Mixture-of-Experts layer (Shazeer et al., 2017): router, dispatcher, experts and, beside them, shared experts.
// Latent experts work at a smaller width L than the residual stream's D: all experts of the layer share a map [L, D],
// through which tokens go before they are dispatched, and one [D, L] for the sums of what comes back, so that rows of L
// travel (Megatron-LM's fc1_latent_proj and fc2_latent_proj). Router and shared experts read the residual stream.
#pragma once

#include <memory>
#include <optional>

#include "witan/moe/dispatchers/dispatcher.h"
#include "witan/moe/dispatchers/expert_pools.h"
#include "witan/moe/layer/experts.h"
#include "witan/moe/routers/router.h"
#include "witan/nn/axes.h"

namespace witan {

struct MoeOutput {
  Var y;  // [.., D]
  // Of all tokens of a micro-batch, those that other ranks of its tensor or context axis hold included.
  RouterRecord record;
};

// What the backward pass computes again: activations, or the shared experts as a whole.
struct MoeRecompute {
  bool activations = false, shared_activations = false, shared_experts = false;
};

class Moe : public Module {
 public:
  Moe(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width, const ModelAxes& axes);

  // x [B, S, D] of the residual stream, or [T, D]
  MoeOutput forward(Tape& tape, const Var& x, MoeRecompute again, Dropping dropping = Dropping::by_capacity,
                    const TokenSource& source = {});
  // With all activations computed again, or with nothing.
  MoeOutput forward(Tape& tape, const Var& x, bool rematerialise, Dropping dropping = Dropping::by_capacity,
                    const TokenSource& source = {}) {
    return forward(tape, x, MoeRecompute{rematerialise, rematerialise}, dropping, source);
  }
  void attach(const ModelServices& services) override;
  std::string_view cost_part() const override { return "dispatch"; }
  // The names of what forward() records.
  const RouterRecord& names() const { return names_; }

 private:
  Var shared(Tape& tape, const Var& x, const MoeRecompute& again, const Randomness& randomness);

  RouterRecord names_;
  const ExpertPools* pools_ = nullptr;
  Stream* side_ = nullptr;
  int64_t replica_slots_;  // in training
  std::unique_ptr<Router> router_;
  std::unique_ptr<TokenDispatcher> dispatcher_;
  std::optional<Linear> to_latent_, from_latent_;  // around dispatch, experts and combine
  Experts experts_;
  std::optional<SharedExperts> shared_;
};

}  // namespace witan
