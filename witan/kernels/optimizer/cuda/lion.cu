#include "witan/kernels/optimizer/cuda/update_launch.cuh"

namespace witan::kernels::cuda {

void lion_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
              const LionArgs& args) {
  launch_updates<LionRule>(stream, items, table, step, args);
}

}  // namespace witan::kernels::cuda
