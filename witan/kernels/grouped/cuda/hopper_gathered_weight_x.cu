#include "witan/kernels/grouped/cuda/weight_gradient.cuh"

namespace witan::kernels::cuda {

void hopper_gathered_weight_x(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                              const RowGroups& groups, const RowIndex& x_rows) {
  gathered_weight<Gathered::b>(stream, to, dy, x, groups, x_rows);
}

}  // namespace witan::kernels::cuda
