// What a model's costs are charged to.
#pragma once

#include "witan/model/transformer.h"

namespace witan {

// Sets hooks so that, forward and backward, the stream charges costs to "embedding", "attention", "router", "experts",
// "dispatch" (the rest of an MoE layer), "mlp" or, for all else, the part that was current before (give it a name with
// Stream::set_part). The stream must outlive the model.
void charge_parts(Transformer& model, Stream& stream);

}  // namespace witan
