#include "witan/checkpoint/state.h"

#include "witan/checkpoint/manifest.h"
#include "witan/tensor/split.h"

namespace witan {

void check_state(const StateTensor& state) {
  const Tensor& local = state.local;
  require<ShapeError>(local.defined() && local.contiguous() && !local.is_meta(), "checkpoint: \"", state.name,
                      "\" must be a contiguous tensor with values");
  const Tensor& rest = state.remainder;
  require<ShapeError>(!rest.defined() || (rest.contiguous() && rest.shape() == local.shape() &&
                                          rest.dtype() == kRemainder && local.dtype() == DType::bf16),
                      "checkpoint: \"", state.name, "\" must be two halves of 16 bits and of one shape, got ",
                      local.dtype(), " ", local.shape(), " and ", rest.dtype(), " ", rest.shape());
  const Shape& global = state.global_shape;
  const int64_t rows = row_count(local.shape());
  const Shape expected = global.dims() == 0 ? global : global.with(0, rows);
  require<ShapeError>(local.shape() == expected, "checkpoint: \"", state.name, "\" must hold rows of the global ",
                      global, ", got ", local.shape());
  require<ShapeError>(state.first_row >= 0 && state.first_row <= row_count(global) - rows, "checkpoint: \"", state.name,
                      "\": rows ", state.first_row, " to ", state.first_row + rows, " are not rows of the global ",
                      global);
}

}  // namespace witan
