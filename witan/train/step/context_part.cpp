#include "witan/train/step/context_part.h"

#include "witan/comm/context.h"

namespace witan {

std::vector<Batch> context_part(const std::vector<Batch>& batches, const Group& context) {
  std::vector<Batch> parts;
  for (const Batch& batch : batches) {
    const kernels::PositionRuns runs = context_positions(batch.sequence_length, context.size(), context.rank());
    const int64_t length = batch.sequence_length / context.size(), early = std::min(runs.split, length);
    parts.push_back(take_places(batch, {{runs.first, early}, {runs.second, length - early}}));
  }
  return parts;
}

}  // namespace witan
