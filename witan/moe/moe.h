// A Mixture-of-Experts layer (Shazeer et al., 2017): router, dispatcher, experts and, beside them, shared experts.
#pragma once

#include <memory>
#include <optional>

#include "witan/moe/dispatcher.h"
#include "witan/moe/experts.h"
#include "witan/moe/router.h"
#include "witan/moe/shared_experts.h"
#include "witan/nn/axes.h"

namespace witan {

struct MoeOutput {
  Var y;  // [.., D]
  // Of all tokens of a micro-batch, those that other ranks of its tensor or context axis hold included.
  RouterRecord record;
};

class Moe : public Module {
 public:
  Moe(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width, const ModelAxes& axes);

  // x [B, S, D] of the residual stream, or [T, D]
  MoeOutput forward(Tape& tape, const Var& x, bool rematerialise, Dropping dropping = Dropping::by_capacity);
  // The names of what forward() records.
  const RouterRecord& names() const { return names_; }

 private:
  RouterRecord names_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<TokenDispatcher> dispatcher_;
  Experts experts_;
  std::optional<SharedExperts> shared_;
};

}  // namespace witan
