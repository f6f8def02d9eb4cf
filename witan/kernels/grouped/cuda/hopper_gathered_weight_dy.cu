#include "witan/kernels/grouped/cuda/weight_gradient.cuh"

namespace witan::kernels::cuda {

void hopper_gathered_weight_dy(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                               const RowGroups& groups, const RowIndex& dy_rows) {
  gathered_weight<Gathered::a>(stream, to, dy, x, groups, dy_rows);
}

}  // namespace witan::kernels::cuda
