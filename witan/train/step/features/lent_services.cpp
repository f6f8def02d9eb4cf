#include "witan/train/step/features/lent_services.h"

#include <algorithm>

namespace witan {
namespace {

// Norms run on the tensor axis's stream too, and sum the gradients of their weights in its scratch memory.
int64_t tensor_scratch(const ModelConfig& model) {
  constexpr int64_t kLeast = int64_t{16} << 20, kStrips = 512;  // the most strips of rows in a sum of columns
  const auto bytes = static_cast<int64_t>(size_of(accumulator(model.compute_dtype())));
  return std::max(kLeast, kStrips * model.hidden_size * bytes);
}

constexpr int64_t kExpertScratch = 512;  // exchanges of rows need none

}  // namespace

// Rows that travel to experts have a stream of their own, since the reduction of gradients, which runs beside the
// backward, would delay them.
SideStreams::SideStreams(Stream& stream, const Groups& groups, const RunConfig& config)
    : main_(stream), groups_(groups) {
  if (config.overlaps_tensor_exchanges()) tensor_ = std::make_unique<Stream>(stream, tensor_scratch(config.model));
  if (config.model.moe.moe_shared_expert_overlap && groups.of(Axis::expert).size() > 1)
    expert_ = std::make_unique<Stream>(stream, kExpertScratch);
}

// Exchanges of the tensor axis that do not go through peer memory stay on the main stream with those of other groups:
// NCCL's kernels occupy multiprocessors while they wait for each other.
void SideStreams::offer(ModelServices& services) {
  const bool beside = !main_.is_cuda() || groups_.of(Axis::tensor).peers() != nullptr;
  if (tensor_) services.tensor_side = beside ? tensor_.get() : &main_;
  services.expert_side = expert_.get();
}

}  // namespace witan
