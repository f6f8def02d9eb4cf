#include "witan/nn/attention/indexer.h"

#include <cmath>
#include <utility>

#include "witan/ops/attention/heads.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

constexpr const char* kIndexerLoss = "indexer loss";

// Keys have DeepSeek's LayerNorm, whatever the model's other norms are.
NormConfig key_norm() {
  NormConfig norm;
  norm.normalization = "LayerNorm";
  norm.norm_bias = true;
  norm.norm_epsilon = 1e-6;
  return norm;
}

// Products in 8 bits would change choices, and an indexer that does not learn has no adapters.
Builder of_indexer(const Builder& builder, const IndexerSpec& spec) {
  Builder own = builder;
  own.fp8 = nullptr;
  if (!spec.learns()) own.lora = nullptr;
  return own;
}

}  // namespace

Indexer::Indexer(const Builder& builder, const IndexerSpec& spec, int64_t width, int64_t query_rank)
    : Module(builder.path),
      spec_(spec),
      axis_(builder.tensor),
      wq_b_(of_indexer(builder / "wq_b", spec), query_rank, spec.heads * spec.head_dim, builder.init_std),
      wk_(of_indexer(builder / "wk", spec), width, spec.head_dim, builder.init_std),
      k_norm_(builder / "k_norm", key_norm(), spec.head_dim),
      weights_proj_(of_indexer(builder / "weights_proj", spec), width, spec.heads, builder.init_std) {
  for (Linear* child : {&wq_b_, &wk_}) add_child(*child);
  add_child(k_norm_);
  add_child(weights_proj_);
}

double Indexer::scale() const {
  return 1 / std::sqrt(static_cast<double>(spec_.head_dim * spec_.heads));
}

// All ranks have the same loss, so the gradient of a token is the part of any of them.
Var Indexer::whole(Tape& tape, Var x) const {
  if (!axis_ || axis_->residual == Placement::replicate()) return x;
  return ops::redistribute(tape, std::move(x), axis_->group, axis_->residual, Placement::replicate());
}

ops::IndexerHeads Indexer::project(Tape& tape, const Var& x, const Var& latent, const Positions& where,
                                   const Randomness& randomness) {
  const ModuleScope scope(tape, *this);
  const Var in = tape.detached(x);
  const Var q = whole(tape, wq_b_.forward(tape, tape.detached(latent), randomness));
  const Var k = whole(tape, k_norm_.forward(tape, wk_.forward(tape, in, randomness), false));
  const Var w = whole(tape, weights_proj_.forward(tape, in, randomness));
  const int64_t B = q.size(0), S = q.size(1), d = spec_.head_dim;
  const auto turned = [&](const Var& of, int64_t heads) {
    return ops::rope(tape, ops::reshape(tape, of, {B, S, heads, d}), where.positions, spec_.rope);
  };
  return {turned(q, spec_.heads), w, ops::reshape(tape, turned(k, 1), {B, S, d})};
}

Tensor Indexer::choose(Stream& stream, const ops::IndexerHeads& heads, const Tensor& k,
                       const kernels::KeyRows& where) const {
  const int64_t T = heads.q.size(0) * heads.q.size(1);
  return ops::choose_keys(stream,
                          {heads.q.value().reshape({T, spec_.heads, spec_.head_dim}),
                           heads.w.value().reshape({T, spec_.heads}), k, scale(), where},
                          spec_.topk);
}

void Indexer::learn(Tape& tape, const ops::IndexerHeads& heads, ops::IndexerTarget target, const Tensor& ids) const {
  if (!spec_.learns() || !tape.keeps_losses()) return;
  target.tensor = axis_ && axis_->group.size() > 1 ? &axis_->group : nullptr;
  tape.add_loss(losses().front(), ops::indexer_loss(tape, heads, scale(), target, ids));
}

std::vector<LossSpec> Indexer::losses() const {
  if (!spec_.learns()) return {};
  return {{kIndexerLoss, spec_.loss_coefficient, LossSpec::Over::micro_batches}};
}

}  // namespace witan
