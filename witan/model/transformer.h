// A decoder, dense or with experts: embedding (and learned positions) -> dropout -> blocks -> norm -> head.
//
// Options of modded-nanogpt (Jordan et al., 2024): a norm behind the embedding; tables of value embeddings, which give
// layers' attention a row for each token; layers of the second half that add outputs of the first, the last layer the
// first one's (U-net); layers that mix the embedding into their input; logits within a bound.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "witan/model/block.h"
#include "witan/model/mtp.h"
#include "witan/model/stage_layers.h"
#include "witan/model/unit.h"
#include "witan/nn/layers.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {

// The tokens that follow those of a micro-batch, and their positions, for a module of multi-token prediction
// (data/batches/ahead.h). [B, S] int32 each.
struct AheadInput {
  Tensor tokens, positions;
};

// One micro-batch on the device.
struct ModelInput {
  Tensor tokens;  // [B, S] int32
  Positions where;
  Randomness randomness = {};  // of dropout and of routers that draw
  Dropping dropping = Dropping::by_capacity;
  std::vector<AheadInput> ahead = {};  // of each MTP module; none: they do not run
  bool padded = false;  // whether some of where.sequence_ids may be those of padding (data/batches/batch.h)
};

struct ModelOutput {
  Var logits;                         // [T, n], T = B S: V columns, or this rank's where they are divided
  Var x;                              // where another chunk is next, instead: [B, S, D] of the residual stream
  std::vector<RouterRecord> routers;  // of each MoE block, of MTP modules last
  std::vector<Var> ahead;             // logits of each MTP module that ran
};

// What Transformer::read() takes: `tokens` of the runs, one after the other.
ModelInput step_input(Stream& stream, std::vector<kernels::CacheRun> runs, std::span<const int32_t> tokens);

class Transformer : public Module {
 public:
  // All layers. The config must be valid.
  Transformer(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes);
  // Those of a stage of a pipeline.
  Transformer(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes,
              const StageLayers& stage);

  // Through one chunk of layers, on ranks of the tensor axis with the same input. x [B, S, D]: what the chunk before
  // gave; undefined for the model's first.
  ModelOutput forward(Tape& tape, const ModelInput& input, int chunk = 0, Var x = {});
  // The cross entropy (ops/vocabulary/vocabulary.h) of the logits that forward() gave, the same on all ranks of the
  // tensor axis.
  ops::CrossEntropy loss(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                         ops::LossGradient gradient = ops::LossGradient::any);

  // Generation, by a whole model: the residual stream [1, T, D] behind the last block, of the next T tokens of the
  // sequences that input.where.cached names (step_input), whose earlier ones are in the states. Each token is computed
  // as forward() computes it for the whole sequence, but that experts have no capacity. Tape off.
  Residual read(Stream& stream, const ModelInput& input, const SequenceStates& states);
  // The logits [n, V] of some of those tokens. Of padded_vocab_size() columns, of which the first vocab_size are
  // words'.
  Tensor logits(Stream& stream, const Residual& x, std::span<const int32_t> tokens);
  // Both, for the last token of each run: [runs, V].
  Tensor decode(Stream& stream, const ModelInput& input, const SequenceStates& states);
  // One for each layer.
  SequenceStates make_states(Stream& stream, const StateSize& size) const;

  const ModelConfig& config() const { return config_; }
  // What this stage holds, in the model's order.
  std::vector<Unit> units();
  // Numbers the blocks. A tensor_side is for models whose layers are lanes' (train/run/config.cpp says which).
  void attach(const ModelServices& services) override;
  int64_t routers() const;  // that this stage holds
  // This stage's token mixers, each with its layer's number in the whole model: those of MTP modules follow the layers.
  std::vector<std::pair<int64_t, TokenMixer*>> mixers();
  int chunks() const { return static_cast<int>(chunks_.size()); }
  // The longest sequence that the model has positions for; none: any.
  std::optional<int64_t> most_positions() const;

 private:
  using Chunk = std::vector<std::unique_ptr<Block>>;
  struct Embedded {
    Var x;                    // [B, S, D], of the residual stream
    std::vector<Var> values;  // of each table of value embeddings [B, S, G hd_v / n]
  };

  Transformer(const Builder& builder, const ModelConfig& config, const ModelAxes& axes, const StageLayers& stage);
  // Calls use(module, block, number of its layer) for each block that this stage holds, in the model's order; the
  // module is the block itself or its MTP module.
  template <class Use>
  void for_each_block(const Use& use) const;
  template <class Part, class... Args>
  std::unique_ptr<Part> build(bool held, const Builder& builder, const Args&... args);
  void build_value_embeddings(const Builder& builder, const StageLayers& stage);
  void build_layers(const Builder& builder, const ModelAxes& axes, const StageLayers& stage);
  const Chunk& whole() const;  // all layers, of a rank that holds them
  std::vector<RotaryTable> rotary_tables(Stream& stream, const Positions& where, bool generation = false) const;
  // Made once for all layers: rotary tables, and ids of whole sequences.
  Positions with_shared(Stream& stream, const Positions& where) const;
  Embedded embed(Tape& tape, const ModelInput& input);
  Var embed_ahead(Tape& tape, const AheadInput& input);  // [B, S, D]
  // Of what the embedding's table gives, the residual stream.
  Var embedded(Tape& tape, Var rows, const Tensor& positions);
  void check_length(const ModelInput& input) const;  // throws ShapeError where there are fewer positions
  // x [B, S, D] -> [T, n], and what the norm gives, to `out` if that is not null
  Var head(Tape& tape, const Residual& x, Var* out = nullptr);
  Var logits(Tape& tape, const Var& normed);  // [B, S, D] -> [T, n]
  void predict_ahead(Tape& tape, const ModelInput& input, const Positions& where, Var h, ModelOutput& out);
  Var gathered(Tape& tape, Var logits);
  Var capped(Tape& tape, Var logits) const;
  // Calls run(block, its inputs, x) -> x for each layer of a chunk, and hands on what layers write beside x.
  template <class Run>
  Residual through(Tape& tape, const Chunk& chunk, Residual x, std::vector<Var> values, const Run& run);

  ModelConfig config_;
  UnitAccess* units_ = nullptr;
  std::vector<LayerSpec> layers_;     // of all stages
  std::optional<TensorAxis> tensor_;  // none: matrices are whole
  std::vector<int64_t> columns_;      // where those of the logits begin that a rank of it has, and all of them end
  bool loss_parallel_;                // logits are divided over it
  Stream* tensor_side_ = nullptr;
  Group* exchanges_channels_ = nullptr;  // the context-parallel ranks, where some layer's exchange channels
  Dropout embedding_dropout_;
  bool last_;                                      // the last chunk ends with the head
  std::unique_ptr<Embedding> embedding_;           // null: another stage's
  std::unique_ptr<Embedding> position_embedding_;  // null: another stage's, or positions are not learned
  std::vector<std::unique_ptr<Embedding>> value_embeddings_;
  std::unique_ptr<Norm> embedding_norm_;  // null: there is none, or it is another stage's
  std::vector<Chunk> chunks_;
  std::vector<std::vector<int64_t>> numbers_;    // of the chunks' layers, in the whole model
  std::unique_ptr<Norm> final_norm_;             // null: another stage's
  std::unique_ptr<Linear> head_;                 // null: another stage's, or tied to the embedding
  std::vector<std::unique_ptr<MtpModule>> mtp_;  // none: another stage's
};

}  // namespace witan
