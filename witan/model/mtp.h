// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2; Megatron-LM: multi_token_prediction.py): a chain
// of modules after the last layer, the k-th of which predicts the token k places after the next one.
//
//   h_0 = the output of the model's last norm
//   h_k = norm(block(W [enorm(embedding of the token k places ahead); hnorm(h_{k-1})])),  k = 1 … D
//
// The embedding and the head, which reads h_k, are the model's own.
#pragma once

#include <vector>

#include "witan/model/block.h"

namespace witan {

class MtpModule : public Module {
 public:
  MtpModule(const Builder& builder, const ModelConfig& config, const LayerSpec& layer, const ModelAxes& axes);

  struct Output {
    Var h;                // [B, S, D], normalised: read by the head and the next module
    RouterRecord router;  // empty in a dense block
  };
  // embedding [B, S, D] of the tokens ahead, h [B, S, D] of the module before, both placed as the residual stream is.
  Output forward(Tape& tape, const Var& embedding, const Var& h, const Positions& where, const TokenSource& source,
                 Dropping dropping);

  void attach(const ModelServices& services) override;
  Dropout& embedding_dropout() { return embedding_dropout_; }
  Block& block() { return block_; }

 private:
  UnitAccess* units_ = nullptr;
  int unit_;
  Dropout embedding_dropout_;
  Norm enorm_, hnorm_;
  Linear eh_proj_;  // [D, 2 D], whole on every rank of the tensor axis
  Block block_;
  Norm norm_;
};

}  // namespace witan
