#include "witan/parallel/context_heads.h"

#include <algorithm>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

ContextHeads::ContextHeads(const ModelConfig& model, const ParallelConfig& parallel)
    : tensor_(parallel.tensor_model_parallel_size) {
  attention_.absent = true;
  for (const LayerSpec& layer : model.layers())
    if (attention_.absent) attention_ = layer.attention;
}

void ContextHeads::validate(int64_t ranks) const {
  const int64_t most = std::max<int64_t>(attention_.num_attention_heads / tensor_, 1);
  require<ConfigError>(divide(ranks), "context_parallel_size = ", ranks,
                       " with cp_comm_type = a2a: each rank attends with an equal share of the heads, and of the query "
                       "groups or of one of them, which ",
                       text(), " do not allow; set cp_comm_type = p2p, or change context_parallel_size: ",
                       NearestSizes{ranks, most, [this](int64_t other) { return divide(other); }});
}

std::string ContextHeads::text() const {
  const int64_t heads = attention_.num_attention_heads / tensor_,
                groups = std::max<int64_t>(attention_.num_query_groups / tensor_, 1);
  return cat(counted(heads, "head"), attention_.latent.kv_rank > 0 ? "" : cat(" in ", counted(groups, "query group")),
             tensor_ > 1 ? " of a tensor-parallel rank" : "");
}

}  // namespace witan
