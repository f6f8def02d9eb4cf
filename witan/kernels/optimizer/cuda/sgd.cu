#include "witan/kernels/optimizer/cuda/update_launch.cuh"

namespace witan::kernels::cuda {

void sgd_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
             const SgdArgs& args) {
  if (args.momentum == 0)
    launch_updates<DescentRule>(stream, items, table, step, args);
  else
    launch_updates<MomentumRule>(stream, items, table, step, args);
}

}  // namespace witan::kernels::cuda
