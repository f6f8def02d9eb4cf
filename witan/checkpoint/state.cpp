#include "witan/checkpoint/state.h"

#include "witan/tensor/host.h"

namespace witan {

void check_state(const StateTensor& state) {
  const Tensor& local = state.local;
  require<ShapeError>(local.defined() && local.contiguous() && !local.is_meta(), "checkpoint: \"", state.name,
                      "\" must be a contiguous tensor with values");
  const Tensor& rest = state.remainder;
  require<ShapeError>(
      !rest.defined() || (rest.contiguous() && rest.shape() == local.shape() && is_split(local.dtype()) &&
                          rest.dtype() == remainder_dtype(local.dtype())),
      "checkpoint: \"", state.name, "\" must be ",
      local.dtype() == DType::f16 ? "a float16 tensor and its float32 remainder" : "two tensors of 16-bit halves",
      " with one shape, got ", local.dtype(), " ", local.shape(), " and ", rest.dtype(), " ", rest.shape());
  require<ShapeError>(
      state.region.elements() == local.elements() && state.region.end() <= state.global_shape.elements(),
      "checkpoint: \"", state.name, "\": ", local.shape(), " does not hold elements ", state.region, " of the global ",
      state.global_shape);
}

}  // namespace witan
