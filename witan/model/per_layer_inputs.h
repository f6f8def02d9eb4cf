// Embeddings of tokens for each layer (Gemma 3n, 2025; Gemma 4, 2026). Every layer has d channels of its own for each
// token: the sum of a row of a table and a normalised projection of the model's embedding. After its MLP, a layer
// multiplies them by a gate and adds a projection of the product to the residual stream.
//
//   p = (sqrt(d) table[token] + norm(projection x0 / sqrt(D))) / sqrt(2), of all L layers   [B, S, L d]
//   x + norm(projection (activation(gate x) * p_l))                                         in layer l
//
// Tensor-parallel ranks divide the entries of the table. They have the other matrices, which are small, whole, and
// apply them to their own tokens of the residual stream.
#pragma once

#include <vector>

#include "witan/model/config.h"
#include "witan/nn/layers.h"
#include "witan/nn/linear.h"

namespace witan {

// Makes the embeddings that all layers read, once per forward.
class PerLayerInputs : public Module {
 public:
  // Parameters: per_layer_embedding [V, L d], per_layer_model_projection [L d, D], per_layer_projection_norm [d].
  PerLayerInputs(const Builder& builder, const ModelConfig& config);

  // Rows of the table for `ids` [B, S] in the residual stream: [B, S or S / n, L d].
  Var rows(Tape& tape, const Tensor& ids);
  // These and the embedding x [B, S or S / n, D] -> [B, S or S / n, d] for each of L layers.
  std::vector<Var> forward(Tape& tape, const Var& rows, const Var& x, const Randomness& randomness);

  std::string_view cost_part() const override { return "embedding"; }

 private:
  int64_t layers_;
  std::optional<TensorAxis> axis_;
  Embedding table_;
  Linear projection_;
  Norm norm_;
};

// Makes a layer's addition to the residual stream of its embedding, which a projection of the stream gates.
class PerLayerGate : public Module {
 public:
  // Parameters: per_layer_input_gate [d, D], per_layer_projection [D, d], per_layer_norm [D].
  PerLayerGate(const Builder& builder, const ModelConfig& config);

  // The addition to the residual stream: x [B, S, D], p [B, S, d] -> [B, S, D]. Recomputes as `remade` says.
  Var forward(Tape& tape, const Var& x, const Var& p, const RecomputeModules& remade, const Randomness& randomness);

  std::string_view cost_part() const override { return "mlp"; }

 private:
  MlpConfig activation_;
  Linear gate_, projection_;
  Norm norm_;
};

}  // namespace witan
