// A decoder, dense or with experts: embedding (and learned positions) -> dropout -> blocks -> norm -> head.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "witan/model/block.h"
#include "witan/nn/embedding.h"

namespace witan {

// One micro-batch on the device.
struct ModelInput {
  Tensor tokens;  // [B, S] int32
  Positions where;
  Randomness randomness = {};  // of dropout
};

struct ModelOutput {
  Var logits;                         // [T, V], T = B S
  std::vector<Var> balance_losses;    // per MoE block, [1]
  std::vector<Var> z_losses;          // per MoE block, [1]
  std::vector<Tensor> expert_counts;  // per MoE block, [E] int64
};

class Transformer : public Module {
 public:
  // The config must be valid.
  Transformer(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes);

  ModelOutput forward(Tape& tape, const ModelInput& input);

  // Generation: the logits [B, V] of the last of the next S positions, given caches that hold the earlier ones. Tape
  // off.
  Tensor decode(Stream& stream, const ModelInput& input, std::vector<KvCache>& caches);
  std::vector<KvCache> make_caches(Stream& stream, int64_t batch, int64_t positions) const;

  const ModelConfig& config() const { return config_; }
  // The longest sequence that the model has positions for; none: any.
  std::optional<int64_t> most_positions() const;

 private:
  Var embed(Tape& tape, const ModelInput& input);  // [B, S, D]
  Transformer(const Builder& builder, const ModelConfig& config, const ModelAxes& axes);
  Var head(Tape& tape, const Residual& x);

  ModelConfig config_;
  Embedding embedding_;
  std::unique_ptr<Embedding> position_embedding_;  // null: positions are not learned
  Dropout embedding_dropout_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Norm final_norm_;
  std::unique_ptr<Linear> head_;  // null: tied to the embedding
};

}  // namespace witan
