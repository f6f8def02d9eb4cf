// A decoder, dense or with experts: embedding (and learned positions) -> dropout -> blocks -> norm -> head.
//
// Options from modded-nanogpt (Jordan et al., 2024): a norm after the embedding; value embeddings, which add a row for
// each token to the values of attention; skip connections from the first half of the layers to the second, from the
// first layer to the last and so on (U-net); the embedding mixed into layers' inputs; a soft cap on the logits. From
// Gemma 3n and 4: embeddings of tokens for each layer (model/per_layer_inputs.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "witan/model/block.h"
#include "witan/model/config.h"
#include "witan/model/mtp.h"
#include "witan/model/unit.h"
#include "witan/nn/layers.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {

// The tokens after those of a micro-batch, and their positions, for a module of multi-token prediction
// (data/batches/batch.h). [B, S] int32 each.
struct AheadInput {
  Tensor tokens, positions;
};

// One micro-batch on the device.
struct ModelInput {
  Tensor tokens;  // [B, S] int32
  Positions where;
  Randomness randomness = {};  // of dropout and routers
  Dropping dropping = Dropping::by_capacity;
  std::vector<AheadInput> ahead = {};  // for each MTP module; empty: they do not run
  bool padded = false;                 // whether where.sequence_ids may mark padding (data/batches/batch.h)
};

struct ModelOutput {
  Var logits;  // [T, n], T = B S: V columns, or this rank's if ranks divide them
  Var x;       // the residual stream [B, S, D] instead, if another chunk follows; D: ModelConfig::residual_width()
  std::vector<RouterRecord> routers;  // of each MoE block, those of MTP modules last
  std::vector<Var> ahead;             // logits of each MTP module that ran
};

// The input of Transformer::read() for the `tokens` of the runs, one after the other.
ModelInput step_input(Stream& stream, std::vector<kernels::CacheRun> runs, std::span<const int32_t> tokens);

class Transformer : public Module {
 public:
  // Has all layers. The config must be valid.
  Transformer(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes);
  // Has the layers of a pipeline stage.
  Transformer(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes,
              const StageLayers& stage);

  // Runs one chunk of layers; ranks of the tensor axis pass the same input. x [B, S, D]: the output of the chunk
  // before; undefined for the model's first chunk.
  ModelOutput forward(Tape& tape, const ModelInput& input, int chunk = 0, Var x = {});
  // The cross entropy (ops/vocabulary/vocabulary.h) of the logits of forward(), the same on all ranks of the tensor
  // axis.
  ops::CrossEntropy loss(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                         ops::LossGradient gradient = ops::LossGradient::any);
  // Returns the loss of each token, with its gradient.
  ops::TokenLosses token_losses(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights);

  // Generation: the residual stream [1, T, D] after the last block of one chunk of layers, of the next T tokens of the
  // sequences that input.where.cached names (step_input), whose earlier tokens are in the states. Each token is
  // computed as forward() computes it for the whole sequence, except that experts have no capacity. The tape is off.
  // Ranks of the tensor axis pass the same input; if they divide the residual stream by tokens, T is a multiple of
  // token_ranks(), and each has its part [1, T / n, D]. x: the output of the chunk before; undefined for the model's
  // first chunk.
  Residual read(Stream& stream, const ModelInput& input, const SequenceStates& states, int chunk = 0, Tensor x = {});
  // The logits [n, padded_vocab_size()] of some of those tokens after the last chunk, or this rank's columns if ranks
  // divide them. Columns from vocab_size on are padding.
  Tensor logits(Stream& stream, const Residual& x, std::span<const int32_t> tokens);
  // All columns of such logits, from all ranks that divide them.
  Tensor whole_logits(Stream& stream, Tensor logits);
  // Whether ranks divide logits by columns, and also compute losses from their own.
  bool divides_losses() const { return vocabulary_group() != nullptr; }
  // The number of ranks that divide the residual stream by tokens.
  int token_ranks() const;
  // The ranks that divide heads and other channels.
  int tensor_ranks() const { return tensor_ ? tensor_->group.size() : 1; }
  // read() and logits() for the last token of each run: [runs, padded_vocab_size()].
  Tensor decode(Stream& stream, const ModelInput& input, const SequenceStates& states);
  // An empty state for each layer of this stage.
  SequenceStates make_states(Stream& stream, const StateSize& size) const;

  const ModelConfig& config() const { return config_; }
  // The units of this stage, in the model's order.
  std::vector<Unit> units();
  // Numbers the blocks. A tensor_side requires layers that have lanes (train/config/config.cpp checks that).
  void attach(const ModelServices& services) override;
  int64_t routers() const;  // the number of this stage's routers
  // This stage's token mixers, each with its layer's number in the whole model. MTP modules are numbered after the
  // layers.
  std::vector<std::pair<int64_t, TokenMixer*>> mixers();
  int chunks() const { return static_cast<int>(chunks_.size()); }
  // The longest sequence that the model has positions for; none: no limit.
  std::optional<int64_t> most_positions() const;

 private:
  using Chunk = std::vector<std::unique_ptr<Block>>;
  struct Embedded {
    Var x;                    // [B, S, D], of the residual stream
    std::vector<Var> values;  // [B, S, G hd_v / n] of each table of value embeddings
    std::vector<Var> own;     // [B, S, d] for each layer, of the residual stream; empty: layers have none
  };

  Transformer(const Builder& builder, const ModelConfig& config, const ModelAxes& axes, const StageLayers& stage);
  // Calls use(module, block, number of its layer) for each block that this stage holds, in the model's order; the
  // module is the block itself or its MTP module.
  template <class Use>
  void for_each_block(const Use& use) const;
  Group* vocabulary_group() const;
  ops::VocabularyPart vocabulary_part() const;
  template <class Part, class... Args>
  std::unique_ptr<Part> build(bool held, const Builder& builder, const Args&... args);
  void build_value_embeddings(const Builder& builder, const StageLayers& stage);
  // Throws ConfigError if a layer of this chunk uses the keys that a layer of another one makes or chooses.
  void check_keys(int64_t layer, const LayerRange& chunk) const;
  void build_layers(const Builder& builder, const ModelAxes& axes, const StageLayers& stage);
  std::vector<RotaryTable> rotary_tables(Stream& stream, const Positions& where, bool generation = false) const;
  std::shared_ptr<ChosenKeys> chosen_keys() const;  // null if no layer uses another one's choice
  std::shared_ptr<LentHeads> lent_heads() const;    // null if no layer uses another one's keys and values
  // Adds the rotary tables and the ids of whole sequences that all layers share.
  Positions with_shared(Stream& stream, const Positions& where) const;
  Embedded embed(Tape& tape, const ModelInput& input);
  Var embed_ahead(Tape& tape, const AheadInput& input);  // [B, S, D]
  Var to_streams(Tape& tape, Var x) const;               // [B, S, D] -> the residual stream before the first block
  // The residual stream from rows of the embedding's table.
  Var embedded(Tape& tape, Var rows, const Tensor& positions);
  void check_length(const ModelInput& input) const;  // throws ShapeError if the model has fewer positions
  // x [B, S, D] -> [T, n]; stores the norm's output in *out unless out is null
  Var head(Tape& tape, const Residual& x, Var* out = nullptr);
  Var normed_for_head(Tape& tape, const Residual& x, bool rematerialise);  // the norm of a single stream
  Var logits(Tape& tape, const Var& normed);                               // [B, S, D] -> [T, n]
  Var logits_of_rows(Tape& tape, const Var& rows);                         // of all ranks' tokens [T, D] -> [T, n]
  void predict_ahead(Tape& tape, const ModelInput& input, const Positions& where, Var h, ModelOutput& out);
  Var gathered(Tape& tape, Var logits);
  Var capped(Tape& tape, Var logits) const;
  // Calls run(block, its inputs, x) -> x for each layer of a chunk, and passes on the layers' other outputs.
  // `embedded` has what layers read beside the residual stream.
  template <class Run>
  Residual through(Tape& tape, const Chunk& chunk, Residual x, Embedded embedded, const Run& run);

  ModelConfig config_;
  UnitAccess* units_ = nullptr;
  std::vector<LayerSpec> layers_;     // of all stages
  std::optional<TensorAxis> tensor_;  // none: matrices are whole
  std::vector<int64_t> columns_;      // [ranks + 1]: the first column of each rank's logits, and the end of the last
  bool loss_parallel_;                // whether logits stay divided over tensor_
  Stream* tensor_side_ = nullptr;
  Group* exchanges_channels_ = nullptr;  // the context-parallel ranks, if they exchange channels in some layer
  EmbeddingNoise embedding_noise_;
  Dropout embedding_dropout_;
  bool last_;                                      // whether the last chunk ends with the head
  std::unique_ptr<Embedding> embedding_;           // null on other stages
  std::unique_ptr<Embedding> position_embedding_;  // null on other stages, or if positions are not learned
  std::vector<std::unique_ptr<Embedding>> value_embeddings_;
  std::unique_ptr<Norm> embedding_norm_;              // null on other stages, or if there is none
  std::unique_ptr<PerLayerInputs> per_layer_inputs_;  // null if layers have no embeddings of their own
  std::vector<Chunk> chunks_;
  std::vector<std::vector<int64_t>> numbers_;      // the numbers of the chunks' layers in the whole model
  std::unique_ptr<HyperConnection> head_streams_;  // null on other stages, or if the residual stream is a single one
  std::unique_ptr<Norm> final_norm_;               // null on other stages
  std::unique_ptr<Linear> head_;                   // null on other stages, or if it is tied to the embedding
  std::vector<std::unique_ptr<MtpModule>> mtp_;    // empty on other stages
};

}  // namespace witan
