// The loss of a model on one batch, without gradients.
#pragma once

#include "witan/data/batch.h"
#include "witan/model/transformer.h"

namespace witan {

struct Evaluation {
  double nats = 0;  // summed over the targets that count
  double targets = 0;
  double loss() const { return targets > 0 ? nats / targets : 0; }
};

// The nats of the batch's targets that count. Where experts are divided among ranks, all of them call it, each with a
// batch of its own.
Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch);

}  // namespace witan
