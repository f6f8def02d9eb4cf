// The lightning indexer of DeepSeek Sparse Attention (DeepSeek-V3.2-Exp, 2025): it scores the keys that a token sees by
// a few narrow heads, of which all share one key, and learns the distribution of attention. Its inputs are detached:
// the model learns nothing from its loss.
#pragma once

#include <optional>

#include "witan/nn/attention/attention_spec.h"
#include "witan/nn/layers.h"
#include "witan/nn/linear.h"
#include "witan/nn/mixer/token_mixer.h"
#include "witan/ops/attention/sparse_attention.h"

namespace witan {

class Indexer : public Module {
 public:
  // Parameters, by Hugging Face's names; H and d of IndexerSpec, Q the rank of attention's queries:
  //   wq_b.weight [H d, Q], wk.weight [d, D], k_norm.weight [d], k_norm.bias [d], weights_proj.weight [H, D]
  // All are whole on every rank of the tensor axis, which compute the same choice.
  Indexer(const Builder& builder, const IndexerSpec& spec, int64_t width, int64_t query_rank);

  // x [B, S, D] and attention's latents of queries [B, S, Q] of the residual stream's tokens -> [B, S, H, d], [B, S, H]
  // and [B, S, d] of all tokens.
  ops::IndexerHeads project(Tape& tape, const Var& x, const Var& latent, const Positions& where,
                            const Randomness& randomness = {});
  // The keys that the tokens choose among those of `where`: k [R, C, d] or [R, C, 1, d].
  Tensor choose(Stream& stream, const ops::IndexerHeads& heads, const Tensor& k, const kernels::KeyRows& where) const;
  // Records the indexer's loss. target.scale and the tensors of this rank's heads are given.
  void learn(Tape& tape, const ops::IndexerHeads& heads, ops::IndexerTarget target, const Tensor& ids) const;

  std::vector<LossSpec> losses() const override;

 private:
  double scale() const;
  Var whole(Tape& tape, Var x) const;  // of all tokens, if ranks of the tensor axis divide them

  IndexerSpec spec_;
  std::optional<TensorAxis> axis_;
  Linear wq_b_, wk_;
  Norm k_norm_;
  Linear weights_proj_;
};

}  // namespace witan
