// Assigns layers to pipeline stages: pure arithmetic, the same on every rank.
//
// The model is split into stages x chunks runs of layers; in the order of layers these are chunk 0 of stages 0 … p-1,
// then chunk 1 of stages 0 … p-1, and so on. The first holds the embedding too, the last the final norm and the head.
//
// Keys and results are Megatron-LM's where it has a result. It has none where layers do not divide by stages and
// chunks; here the layers that are left over go one each to the chunks before the last: that one has the head, and the
// first stages have the most micro-batches in flight.
#pragma once

#include <cstdint>
#include <vector>

#include "witan/model/config.h"

namespace witan {

struct StageSplit {
  int64_t num_layers = 1;
  int64_t pipeline_model_parallel_size = 1;
  // The number of chunks per stage: at most one of the two is set; neither: one chunk.
  int64_t num_layers_per_virtual_pipeline_stage = 0;  // layers per chunk
  int64_t num_virtual_stages_per_pipeline_rank = 0;   // chunks per stage
  // Layers of all chunks of the first and of the last stage; 0: as many as in any other.
  int64_t decoder_first_pipeline_num_layers = 0;
  int64_t decoder_last_pipeline_num_layers = 0;
  // Whether the embedding, or the loss, counts as a layer of its chunk.
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;

  void validate() const;  // throws ConfigError as Stages does
};

class Stages {
 public:
  // Throws ConfigError for an impossible split, and names the nearest possible one. Every chunk has a layer, or what
  // counts as one.
  explicit Stages(const StageSplit& split);

  int stages() const { return stages_; }
  int chunks() const { return chunks_; }  // per stage
  LayerRange layers(int stage, int chunk) const;
  bool has_embedding(int stage, int chunk) const { return stage == 0 && chunk == 0; }
  bool has_head(int stage, int chunk) const { return stage == stages_ - 1 && chunk == chunks_ - 1; }
  int stage_of(int64_t layer) const;
  StageLayers held_by(int stage) const;

 private:
  int stages_, chunks_;
  std::vector<int64_t> begins_;  // first layer of each chunk in the order of layers, then the number of layers
};

}  // namespace witan
