// The loss of a model on one batch, without gradients.
#pragma once

#include "witan/train/engine.h"

namespace witan {

// The nats of the batch's targets that count. Where experts are divided among ranks, all of them call it, each with a
// batch of its own.
Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch);

}  // namespace witan
