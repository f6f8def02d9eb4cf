#include "witan/kernels/optimizer/cuda/update_launch.cuh"

namespace witan::kernels::cuda {

void ademamix_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
                  const AdEMAMixArgs& args) {
  launch_updates<AdEMAMixRule>(stream, items, table, step, args);
}

}  // namespace witan::kernels::cuda
