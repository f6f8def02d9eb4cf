#include "witan/kernels/optimizer/cuda/update_launch.cuh"

namespace witan::kernels::cuda {

void adamw_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
               const AdamWArgs& args) {
  launch_updates<AdamWRule, StateTypes::accumulator_or_bf16>(stream, items, table, step, args);
}

}  // namespace witan::kernels::cuda
