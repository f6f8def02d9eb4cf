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

const MixerKind& ContextHeads::first_divided() const {
  for (const LayerSpec& layer : layers_)
    if (const MixerKind& kind = mixer_kind(layer.mixer); !kind.context_parts(tensor_).empty()) return kind;
  return mixer_kind(layers_.front().mixer);
}

void ContextHeads::validate(int64_t ranks) const {
  const int64_t most = first_divided().most_context_ranks(tensor_);
  require<ConfigError>(divide(ranks), "context_parallel_size = ", ranks,
                       " with cp_comm_type = a2a: each rank attends with an equal share of the heads, and of the query "
                       "groups or of one of them, which ",
                       text(), " do not allow; set cp_comm_type = p2p, or change context_parallel_size: ",
                       NearestSizes{ranks, most, [this](int64_t other) { return divide(other); }});
}

std::string ContextHeads::text() const {
  return cat(first_divided().context_parts(tensor_), tensor_ > 1 ? " of a tensor-parallel rank" : "");
}

}  // namespace witan
