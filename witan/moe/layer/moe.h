// A Mixture-of-Experts layer (Shazeer et al., 2017): router, dispatcher, experts and, beside them, shared experts.
// Latent experts work at a smaller width L than the residual stream's D: tokens are projected to L before dispatch and
// the combined sums back to D, by maps [L, D] and [D, L] that all experts of the layer share, so that rows of width L
// travel (Megatron-LM's fc1_latent_proj and fc2_latent_proj). Router and shared experts read the residual stream.
#pragma once

#include <memory>
#include <optional>

#include "witan/moe/dispatchers/dispatcher.h"
#include "witan/moe/dispatchers/receive_buffers.h"
#include "witan/moe/layer/experts.h"
#include "witan/moe/routers/router.h"
#include "witan/nn/axes.h"

namespace witan {

struct MoeOutput {
  Var y;  // [.., D]
  // Covers all tokens of a micro-batch, including those of other tensor- and context-parallel ranks.
  RouterRecord record;
};

// Selects what the backward recomputes: activations, or the shared experts as a whole.
struct MoeRecompute {
  bool activations = false, shared_activations = false, shared_experts = false;
};

class Moe : public Module {
 public:
  // `norm` gives the epsilon of moe_router_input_norm.
  Moe(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width, const ModelAxes& axes,
      const NormConfig& norm = {});

  // x [B, S, D] of the residual stream, or [T, D]. Experts read x, and the router `routed` [of x's shape], or x if it
  // is undefined.
  MoeOutput forward(Tape& tape, const Var& x, MoeRecompute again, Dropping dropping = Dropping::by_capacity,
                    const TokenSource& source = {}, const Var& routed = {});
  // Recomputes all activations, or nothing.
  MoeOutput forward(Tape& tape, const Var& x, bool rematerialise, Dropping dropping = Dropping::by_capacity,
                    const TokenSource& source = {}) {
    return forward(tape, x, MoeRecompute{rematerialise, rematerialise}, dropping, source);
  }
  void attach(const ModelServices& services) override;
  std::string_view cost_part() const override { return "dispatch"; }
  // The names of the values that forward() records.
  const RouterRecord& names() const { return names_; }

 private:
  Var shared(Tape& tape, const Var& x, const MoeRecompute& again, const Randomness& randomness);

  RouterRecord names_;
  const ReceiveBuffers* receive_buffers_ = nullptr;
  Stream* side_ = nullptr;
  int64_t replica_slots_;  // used in training
  std::unique_ptr<Router> router_;
  std::unique_ptr<TokenDispatcher> dispatcher_;
  std::optional<Linear> to_latent_, from_latent_;  // around dispatch, experts and combine
  Experts experts_;
  std::optional<SharedExperts> shared_;
};

}  // namespace witan
