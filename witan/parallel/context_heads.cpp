#include "witan/parallel/context_heads.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

ContextHeads::ContextHeads(const ModelConfig& model, const ParallelConfig& parallel)
    : layers_(model.layers()), tensor_(parallel.tensor_model_parallel_size) {}

bool ContextHeads::divide(int64_t ranks) const {
  return std::ranges::all_of(
      layers_, [&](const LayerSpec& layer) { return mixer_kind(layer.mixer).context_ranks_divide(tensor_, ranks); });
}

const MixerKind* ContextHeads::first_of(bool divided, int64_t ranks) const {
  for (const LayerSpec& layer : layers_)
    if (const MixerKind& kind = mixer_kind(layer.mixer);
        !kind.context_parts(tensor_).empty() && kind.context_ranks_divide(tensor_, ranks) == divided)
      return &kind;
  return nullptr;
}

void ContextHeads::validate(int64_t ranks) const {
  const MixerKind* const undivided = first_of(false, ranks);
  if (undivided == nullptr) return;
  throw ConfigError(cat("context_parallel_size = ", ranks,
                        " with cp_comm_type = a2a: each rank attends with an equal share of the heads, and of the "
                        "query groups or of one of them, which ",
                        text_of(*undivided), " do not allow; set cp_comm_type = p2p, or ",
                        NearestSizes{"context_parallel_size", ranks, undivided->most_context_ranks(tensor_),
                                     [this](int64_t other) { return divide(other); }}));
}

std::string ContextHeads::text(int64_t ranks) const {
  const MixerKind* const kind = first_of(divide(ranks), ranks);
  return kind == nullptr ? "" : text_of(*kind);
}

std::string ContextHeads::text_of(const MixerKind& kind) const {
  return cat(kind.context_parts(tensor_), tensor_ > 1 ? " of a tensor-parallel rank" : "");
}

}  // namespace witan
