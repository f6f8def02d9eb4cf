// The loss of a model on one batch, without gradients. Nothing is dropped, neither by dropout nor beyond a capacity of
// experts: the loss of a sequence depends on no other sequence.
#pragma once

#include <span>
#include <vector>

#include "witan/data/batch.h"
#include "witan/model/transformer.h"
#include "witan/parallel/pipeline_channel.h"

namespace witan {

struct Evaluation {
  double nats = 0;  // summed over the targets that count
  double targets = 0;
  double seconds = 0;  // that it took, where that was measured
  double loss() const { return targets > 0 ? nats / targets : 0; }
};

// The nats of the batch's targets that count; no expert computes padding. Where experts are divided among ranks, all of
// them call it, each with a batch of its own. `padded`: rows may be padded, which takes some memory even where none is.
Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch, bool padded);
// Of several batches, by the stages of a pipeline: a call of all of them. Nats are the last one's to tell; other stages
// find nothing.
std::vector<Evaluation> evaluate(Stream& stream, Transformer& model, PipelineChannel& channel,
                                 std::span<const Batch> batches, bool padded);

}  // namespace witan
