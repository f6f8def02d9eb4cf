// Names the parts of a model that costs are attributed to.
#pragma once

#include <vector>

#include "witan/model/transformer.h"

namespace witan {

// Observes the model as long as it is held, so that, forward and backward, the stream charges costs to "embedding",
// "attention", "router", "experts", "dispatch" (the rest of an MoE layer), "mlp" (shared experts too) or, for all else,
// the part that was current before (give it a name with Stream::set_part). The stream must outlive what is returned.
[[nodiscard]] std::vector<ModuleObserver> charge_parts(Transformer& model, Stream& stream);

}  // namespace witan
