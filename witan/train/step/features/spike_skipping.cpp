#include "witan/train/step/features/spike_skipping.h"

#include "witan/kernels/common/step_report.h"

namespace witan {

LossGather::LossGather(Stream& stream, const Groups& groups, int64_t micro_batches)
    : world_(groups.world()),
      all_(stream.zeros({world_.size() * micro_batches}, DType::f64, MemoryTag::communication)),
      own_(all_.narrow(0, world_.rank() * micro_batches, micro_batches)) {
  const Layout& layout = groups.layout();
  const Mesh& mesh = layout.mesh();
  std::vector<int64_t> order;
  for (const int rank : layout.loss_reporting_ranks())
    if (mesh.coordinate(rank, Axis::pipeline) + 1 == mesh.size(Axis::pipeline))
      for (int64_t i = 0; i < micro_batches; ++i) order.push_back(rank * micro_batches + i);
  order_ = stream.empty({static_cast<int64_t>(order.size())}, DType::i64, MemoryTag::communication);
  stream.write(order_, order.data());
}

void LossGather::gather(Stream& stream, const std::vector<Tensor>& own) {
  if (!own.empty()) kernels::collect(stream, own_, own);
  world_.all_gather(stream, all_, own_);
}

}  // namespace witan
