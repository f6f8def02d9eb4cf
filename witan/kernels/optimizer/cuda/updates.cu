#include "witan/kernels/optimizer/cuda/update_launch.cuh"

namespace witan::kernels::cuda {

void adamw_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
               const AdamWArgs& args) {
  launch_updates<AdamWRule, StateTypes::accumulator_or_bf16>(stream, items, table, step, args);
}

void ademamix_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
                  const AdEMAMixArgs& args) {
  launch_updates<AdEMAMixRule>(stream, items, table, step, args);
}

void lion_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
              const LionArgs& args) {
  launch_updates<LionRule>(stream, items, table, step, args);
}

void sgd_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
             const SgdArgs& args) {
  if (args.momentum == 0)
    launch_updates<DescentRule>(stream, items, table, step, args);
  else
    launch_updates<MomentumRule>(stream, items, table, step, args);
}

}  // namespace witan::kernels::cuda
