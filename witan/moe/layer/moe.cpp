#include "witan/moe/layer/moe.h"

#include "witan/autograd/recompute.h"
#include "witan/moe/dispatchers/replicas.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/shape.h"

namespace witan {

Moe::Moe(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width, const ModelAxes& axes,
         const NormConfig& norm)
    : Module(builder.path),
      names_(RouterRecord::named(router_statistics(moe))),
      replica_slots_(replica_slots(moe, axes.expert->size())),
      router_(make_router(builder / "router", moe, width, axes.context, norm)),
      dispatcher_(make_dispatcher(moe, axes)),
      experts_(builder / "experts", moe, mlp, expert_width(moe, width)) {
  add_child(*router_);
  if (const int64_t latent = moe.moe_latent_size; latent > 0) {
    add_child(to_latent_.emplace(builder / "fc1_latent_proj", width, latent, builder.init_std));
    add_child(from_latent_.emplace(builder / "fc2_latent_proj", latent, width, builder.output_init_std));
  }
  add_child(experts_);
  if (moe.has_shared_experts()) add_child(shared_.emplace(builder / "shared_experts", moe, mlp, width));
}

void Moe::attach(const ModelServices& services) {
  if (services.receive_buffers) receive_buffers_ = services.receive_buffers;
  if (services.expert_side) side_ = services.expert_side;
  Module::attach(services);
}

Var Moe::shared(Tape& tape, const Var& x, const MoeRecompute& again, const Randomness& randomness) {
  const bool activations = again.shared_activations;
  if (!again.shared_experts) return shared_->forward(tape, x, activations, randomness);
  const auto segment = [this, activations, randomness](Tape& on, const std::vector<Var>& in) {
    return std::vector{shared_->forward(on, in[0], activations, randomness)};
  };
  return recomputed(tape, {x}, segment)[0];
}

MoeOutput Moe::forward(Tape& tape, const Var& x, MoeRecompute again, Dropping dropping, const TokenSource& source,
                       const Var& routed) {
  const ModuleScope scope(tape, *this);
  const Routing routing = router_->forward(tape, routed.defined() ? routed : x, dropping, source);
  // The tokens' view is made after the router ran, so that the backward adds the router's gradient to the experts'.
  const auto [T, D] = x.shape().as_rows();
  const Var tokens = ops::reshape(tape, x, {T, D});
  const DispatchLimits limits =
      dropping == Dropping::by_capacity ? DispatchLimits{receive_buffers_, replica_slots_} : DispatchLimits{};
  // With bounded receive buffers memory matters most: activations, which are cheap, are recomputed too.
  const bool activations = again.activations || (limits.receive_buffers && limits.receive_buffers->bounds_buffers());
  const auto run = [this, activations](Tape& on, const Dispatched& in, const ExpertRows& rows) {
    return experts_.forward(on, in, rows, activations);
  };
  const Var dispatched = to_latent_ ? to_latent_->forward(tape, tokens) : tokens;
  Var beside;
  const auto run_shared = [&](Tape& on) { beside = shared(on, x, again, source.randomness); };
  const ops::Meanwhile meanwhile{side_, run_shared};
  Var y = dispatcher_->forward(tape, dispatched, routing, run, limits, shared_ && side_ ? &meanwhile : nullptr);
  if (from_latent_) y = from_latent_->forward(tape, y);
  y = ops::reshape(tape, y, x.shape());
  if (shared_ && !beside.defined()) run_shared(tape);
  if (shared_) y = ops::add(tape, y, beside);
  return {std::move(y), routing.record};
}

}  // namespace witan
