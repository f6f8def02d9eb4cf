// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2; Megatron-LM: multi_token_prediction.py): modules
// behind the last layer, one after the other, the k-th of which predicts the token k places behind the next one.
//
//   h_0 = what the model's last norm gives
//   h_k = norm(block(W [enorm(embedding of the token k places ahead); hnorm(h_{k-1})])),  k = 1 … D
//
// The embedding and the head, which reads h_k, are the model's own.
#pragma once

#include <vector>

#include "witan/model/block.h"

namespace witan {

// The layers of the model, and behind them the blocks of its MTP modules, which are as the last layer.
std::vector<LayerSpec> layers_with_mtp(const ModelConfig& config);

class MtpModule : public Module {
 public:
  MtpModule(const Builder& builder, const ModelConfig& config, const LayerSpec& layer, const ModelAxes& axes);

  struct Output {
    Var h;                // [B, S, D], normalised: what the head and the next module read
    RouterRecord router;  // empty in a dense block
  };
  // embedding, h [B, S, D], as the residual stream is held: of the tokens ahead, and what the module before gave.
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
